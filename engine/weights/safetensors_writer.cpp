#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/output_file.h"
#include "engine/weights/narrow_float.h"
#include "engine/weights/safetensors.h"

namespace dstrain {
namespace {

std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }

std::uint64_t tensor_bytes(const SafetensorsTensor& tensor) {
  auto bytes = static_cast<std::uint64_t>(dtype_bytes(tensor.dtype));
  for (const std::int64_t size : tensor.shape) bytes *= static_cast<std::uint64_t>(size);
  return bytes;
}

}  // namespace

/// Writes beside the path and renames over it when all is on disk, without a copy of the whole
/// content in memory.
class SafetensorsWriter::AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path)
      : path_(path),
        temporary_(path.string() + fmt::format(".tmp{}", static_cast<long>(::getpid()))) {
    fd_ = open_output_file(temporary_, {.old = OldContent::replace, .name = path_});
  }
  ~AtomicFile() {
    if (fd_) ::unlink(temporary_.c_str());
  }
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t size) {
    write_fully(fd_.get(), {static_cast<const char*>(data), size}, path_);
  }

  void write_narrow(std::span<const float> values, std::uint16_t (*narrow)(float)) {
    constexpr std::size_t kChunk = 1 << 16;
    std::vector<std::uint16_t> buffer;
    for (std::size_t begin = 0; begin < values.size(); begin += kChunk) {
      const auto chunk = values.subspan(begin, std::min(kChunk, values.size() - begin));
      buffer.resize(chunk.size());
      std::transform(chunk.begin(), chunk.end(), buffer.begin(), narrow);
      write(buffer.data(), 2 * buffer.size());
    }
  }

  void commit() {
    if (::fsync(fd_.get()) != 0) fail_output_file("flush", path_, errno);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_output_file("rename", path_, errno);
    fd_.reset();
    sync_directory(path_.has_parent_path() ? path_.parent_path() : ".");
  }

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  UniqueFd fd_;
};

std::string safetensors_header(const std::vector<SafetensorsTensor>& tensors,
                               const std::map<std::string, std::string>& metadata) {
  std::string json = "{";
  if (!metadata.empty()) json += "\"__metadata__\":" + nlohmann::json(metadata).dump();
  std::uint64_t begin = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    const std::uint64_t end = begin + tensor_bytes(tensor);
    json += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                        json.size() > 1 ? "," : "", quoted(tensor.name),
                        safetensors_name(tensor.dtype), fmt::join(tensor.shape, ","), begin, end);
    begin = end;
  }
  json += "}";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  std::string header(8, '\0');
  const std::uint64_t length = json.size();
  std::memcpy(header.data(), &length, sizeof(length));
  return header + json;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::vector<SafetensorsTensor> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : path_(path), tensors_(std::move(tensors)), file_(std::make_unique<AtomicFile>(path)) {
  const std::string header = safetensors_header(tensors_, metadata);
  file_->write(header.data(), header.size());
}

SafetensorsWriter::~SafetensorsWriter() = default;

const SafetensorsTensor& SafetensorsWriter::next(std::size_t values) {
  DSTRAIN_CHECK(next_ < tensors_.size(), path_.string() + ": a tensor too many");
  const SafetensorsTensor& tensor = tensors_[next_++];
  DSTRAIN_CHECK(
      values * static_cast<std::size_t>(dtype_bytes(tensor.dtype)) == tensor_bytes(tensor),
      fmt::format("{}: tensor '{}' has {} values", path_.string(), tensor.name, values));
  return tensor;
}

void SafetensorsWriter::write(std::span<const std::int64_t> values) {
  const SafetensorsTensor& tensor = next(values.size());
  DSTRAIN_CHECK(tensor.dtype == DType::i64, tensor.name + " has no integers");
  file_->write(values.data(), values.size_bytes());
}

void SafetensorsWriter::write(std::span<const float> values) {
  const SafetensorsTensor& tensor = next(values.size());
  switch (tensor.dtype) {
    using enum DType;
    case f32:
      file_->write(values.data(), values.size_bytes());
      break;
    case f16:
      file_->write_narrow(values, float_to_half);
      break;
    case bf16:
      file_->write_narrow(values, float_to_bfloat16);
      break;
    case i64:
      DSTRAIN_CHECK(false, tensor.name + " has integers");
  }
}

void SafetensorsWriter::commit() {
  DSTRAIN_CHECK(next_ == tensors_.size(), path_.string() + ": tensors are missing");
  file_->commit();
}

void write_safetensors(const std::filesystem::path& path,
                       const std::vector<SafetensorsTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  SafetensorsWriter writer(path, tensors, metadata);
  for (const SafetensorsTensor& tensor : tensors) writer.write(tensor.values);
  writer.commit();
}

}  // namespace dstrain
