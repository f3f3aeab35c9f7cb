#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain {

/// Whether values of that type, as safetensors spells it, are read: F32, F16 and BF16.
[[nodiscard]] bool is_readable(std::string_view dtype);
/// Values of a readable type, as they lie in a file, as fp32.
void to_floats(std::string_view dtype, std::span<const std::byte> from, std::span<float> to);

/// A file of weights: tensors by name. Those of a dtype that is not readable are listed only.
class WeightFile {
 public:
  struct Entry {
    std::string dtype;  ///< as safetensors spells it
    std::vector<std::int64_t> shape;
    std::uint64_t begin = 0;  ///< bytes, from the start of the file's data
    std::uint64_t end = 0;
  };
  explicit WeightFile(std::filesystem::path path) : path_(std::move(path)) {}
  virtual ~WeightFile() = default;
  WeightFile(const WeightFile&) = delete;
  WeightFile& operator=(const WeightFile&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] const std::map<std::string, Entry>& entries() const { return entries_; }
  /// Elements [begin, begin + out.size()) converted to fp32; Error{data} for one that is not
  /// finite.
  void read(const std::string& name, std::int64_t begin, std::span<float> out) const;

 protected:
  /// The same of an entry that is readable and has these elements, of which there are some.
  virtual void read_values(const std::string& name, const Entry& entry, std::int64_t begin,
                           std::span<float> out) const = 0;
  std::map<std::string, Entry> entries_;

 private:
  std::filesystem::path path_;
};

/// A .safetensors file, or one of torch.save (TorchWeights) where the name ends otherwise.
[[nodiscard]] std::unique_ptr<WeightFile> open_weight_file(const std::filesystem::path& path);

}  // namespace dstrain
