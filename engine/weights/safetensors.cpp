#include "engine/weights/safetensors.h"

#include <utility>

#include "engine/weights/safetensors_header.h"

namespace dstrain {
const char* safetensors_name(DType dtype) {
  using enum DType;
  switch (dtype) {
    case f32:
      return "F32";
    case f16:
      return "F16";
    case bf16:
      return "BF16";
    case i64:
      return "I64";
  }
  return "";
}

int dtype_bytes(DType dtype) { return dtype == DType::i64 ? 8 : dtype == DType::f32 ? 4 : 2; }

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : WeightFile(path), file_(path) {
  SafetensorsHeader header = parse_safetensors(file_.text(), path.string());
  data_begin_ = header.data_begin;
  entries_ = std::move(header.entries);
  metadata_ = std::move(header.metadata);
}

std::span<const std::byte> SafetensorsFile::bytes(const Entry& entry) const {
  return file_.bytes().subspan(data_begin_ + entry.begin, entry.end - entry.begin);
}

void SafetensorsFile::read_values(const std::string&, const Entry& entry, std::int64_t begin,
                                  std::span<float> out) const {
  const std::size_t width = entry.dtype == "F32" ? 4 : 2;
  const auto values =
      bytes(entry).subspan(static_cast<std::size_t>(begin) * width, out.size() * width);
  to_floats(entry.dtype, values, out);
  file_.have_read(values.size());
}

}  // namespace dstrain
