#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/foreign_box.h"
#include "engine/mesh/shard.h"
#include "engine/weights/torch_zip.h"
#include "engine/weights/weight_file.h"

namespace dstrain {

/// A tensor of another program's checkpoint: where its elements lie, in which files. Elements are
/// counted in the order of the shape.
class ForeignTensor {
 public:
  ForeignTensor() = default;
  explicit ForeignTensor(std::vector<std::int64_t> shape) : shape_(std::move(shape)) {}
  /// A whole tensor of a torch file.
  ForeignTensor(const std::shared_ptr<const TorchZip>& zip, const PickleTensor& tensor);
  /// A tensor of a file of weights.
  ForeignTensor(const std::shared_ptr<const WeightFile>& file, const std::string& name);

  [[nodiscard]] const std::vector<std::int64_t>& shape() const { return shape_; }
  [[nodiscard]] std::int64_t numel() const;
  /// Type of its numbers, as safetensors spells it; empty of one without parts.
  [[nodiscard]] std::string dtype() const { return parts_.empty() ? "" : parts_.front().dtype(); }
  /// Elements `range` are those of `tensor` from `begin` on. Error{data} where it has fewer.
  void add(Range range, const ForeignTensor& tensor, std::int64_t begin);
  /// The elements of `box` are those of `tensor`, a whole one of a file, in their order. Boxes that
  /// hold each element once (cover_problem) take no settle().
  void add_box(const ForeignBox& box, const ForeignTensor& tensor);
  /// Sorts the parts; Error{data} naming `name` and an element where they do not hold each element
  /// once.
  void settle(const std::string& name);

  /// Values of elements [begin, begin + out.size()) as fp32.
  void read(std::int64_t begin, std::span<float> out) const;
  /// The kernel may begin to read them.
  void will_read(Range range) const;
  /// The file that holds the element.
  [[nodiscard]] std::string file_of(std::int64_t element) const;

 private:
  /// Elements `range`: those of a tensor of a file, from `begin` on.
  struct Part {
    Range range;
    std::int64_t begin = 0;
    std::shared_ptr<const TorchZip> zip = {};        ///< of a torch file
    const PickleTensor* tensor = nullptr;            ///< in `zip`
    std::shared_ptr<const WeightFile> weights = {};  ///< of another file of weights
    std::string name = {};                           ///< in `weights`
    std::optional<ForeignBox> box = {};  ///< its elements, spread over `range`; else all of it

    [[nodiscard]] const std::string& dtype() const;
    /// Elements [begin, begin + out.size()) of the file's tensor.
    void read(std::int64_t begin, std::span<float> out) const;
    /// Those of the part that lie in `wanted`, counted in the file's tensor.
    [[nodiscard]] Range own(Range wanted) const;
  };
  std::vector<std::int64_t> shape_;
  std::vector<Part> parts_;
};

}  // namespace dstrain
