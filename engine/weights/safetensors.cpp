#include "engine/weights/safetensors.h"

#include <fmt/format.h>

#include <cstring>

#include "engine/base/error.h"
#include "engine/base/finite.h"
#include "engine/weights/narrow_float.h"
#include "engine/weights/safetensors_header.h"

namespace dstrain {
namespace {

template <class Convert>
void widen(std::span<const std::byte> from, std::span<float> to, Convert convert) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, from.data() + 2 * i, 2);
    to[i] = convert(bits);
  }
}

}  // namespace

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

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path), file_(path) {
  SafetensorsHeader header = parse_safetensors(file_.text(), path.string());
  data_begin_ = header.data_begin;
  entries_ = std::move(header.entries);
  metadata_ = std::move(header.metadata);
}

std::span<const std::byte> SafetensorsFile::bytes(const Entry& entry) const {
  return file_.bytes().subspan(data_begin_ + entry.begin, entry.end - entry.begin);
}

void SafetensorsFile::read(const std::string& name, std::int64_t begin,
                           std::span<float> out) const {
  const auto found = entries_.find(name);
  if (found == entries_.end())
    throw Error(ErrorKind::data, fmt::format("{}: no tensor '{}'", path_.string(), name));
  const Entry& entry = found->second;
  const bool wide = entry.dtype == "F32";
  if (!wide && entry.dtype != "F16" && entry.dtype != "BF16") {
    throw Error(ErrorKind::data,
                fmt::format("{}: tensor '{}' is {}", path_.string(), name, entry.dtype),
                "dstrain reads F32, F16 and BF16");
  }
  const std::span<const std::byte> data = bytes(entry);
  const std::size_t element_bytes = wide ? 4 : 2;
  const std::size_t numel = data.size() / element_bytes;
  DSTRAIN_CHECK(begin >= 0 && static_cast<std::size_t>(begin) <= numel &&
                    out.size() <= numel - static_cast<std::size_t>(begin),
                fmt::format("{}: elements [{}, +{}) of '{}', which has {}", path_.string(), begin,
                            out.size(), name, numel));
  if (out.empty()) return;
  const std::span<const std::byte> part =
      data.subspan(static_cast<std::size_t>(begin) * element_bytes, out.size() * element_bytes);
  if (wide) {
    std::memcpy(out.data(), part.data(), part.size());
  } else {
    widen(part, out, entry.dtype == "F16" ? half_to_float : bfloat16_to_float);
  }
  if (const std::int64_t bad = first_non_finite(out); bad >= 0) {
    throw Error(ErrorKind::data,
                fmt::format("{}: tensor '{}' holds {} at element {}", path_.string(), name,
                            out[static_cast<std::size_t>(bad)], begin + bad),
                "nothing can be trained from weights that are not finite: take another file");
  }
}

}  // namespace dstrain
