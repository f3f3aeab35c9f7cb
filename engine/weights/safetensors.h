#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/base/file.h"
#include "engine/weights/weight_file.h"

namespace dstrain {

enum class DType { f32, f16, bf16, i64 };
[[nodiscard]] const char* safetensors_name(DType dtype);  ///< "F32"
[[nodiscard]] int dtype_bytes(DType dtype);

/// Strict reader of a safetensors file (github.com/huggingface/safetensors, README "Format"):
/// header at most 100 MB and inside the file, no duplicate keys, offsets contiguous from 0 to the
/// end without holes or overlap, shape x dtype equal to the length without overflow, JSON depth
/// bounded. Error{data} names file, tensor and rule. Tensors of a dtype we do not use are listed
/// but cannot be read.
class SafetensorsFile final : public WeightFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }
  [[nodiscard]] std::span<const std::byte> bytes(const Entry& entry) const;

 private:
  void read_values(const std::string& name, const Entry& entry, std::int64_t begin,
                   std::span<float> out) const override;

  MappedFile file_;
  std::uint64_t data_begin_ = 0;
  std::map<std::string, std::string> metadata_;
};

/// Tensors for a writer, in file order.
struct SafetensorsTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  DType dtype = DType::f32;
  std::span<const float> values;  ///< converted to `dtype` while writing, which is not i64
};
/// First bytes of a file with these tensors: length and JSON, padded to a multiple of 8. `values`
/// may be empty here.
[[nodiscard]] std::string safetensors_header(const std::vector<SafetensorsTensor>& tensors,
                                             const std::map<std::string, std::string>& metadata);
/// Writes a file tensor by tensor, so that they need not be in memory together. A reader sees the
/// file when it is whole and on disk, or never. Error{checkpoint} when the disk refuses.
class SafetensorsWriter {
 public:
  /// `values` of the tensors are not looked at.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsTensor> tensors,
                    const std::map<std::string, std::string>& metadata);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// The next tensor's values; integers for one of i64.
  void write(std::span<const float> values);
  void write(std::span<const std::int64_t> values);
  /// After the last tensor.
  void commit();

 private:
  class AtomicFile;
  /// The next tensor, which must have so many values.
  const SafetensorsTensor& next(std::size_t values);
  std::filesystem::path path_;
  std::vector<SafetensorsTensor> tensors_;
  std::size_t next_ = 0;
  std::unique_ptr<AtomicFile> file_;
};

/// Writes atomically with fsync; Error{checkpoint} when the disk refuses.
void write_safetensors(const std::filesystem::path& path,
                       const std::vector<SafetensorsTensor>& tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace dstrain
