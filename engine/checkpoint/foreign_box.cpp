#include "engine/checkpoint/foreign_box.h"

#include <algorithm>

#include "engine/mesh/pieces.h"

namespace dstrain {
namespace {

constexpr std::int64_t kMaxVisits = std::int64_t{1} << 27;

/// Cuts space at every edge of a dim and looks at the boxes of each layer in the next dim.
class Cover {
 public:
  explicit Cover(std::span<const std::int64_t> shape) : shape_(shape) {}

  [[nodiscard]] std::string problem(std::vector<const ForeignBox*> boxes, std::size_t dim) {
    if (dim == shape_.size()) {
      return boxes.size() == 1 ? "" : boxes.empty() ? kMissing : kTwice;
    }
    if (boxes.empty()) return kMissing;
    const auto own = [dim](const ForeignBox* box) { return box->dims()[dim]; };
    std::vector<std::int64_t> edges = {0};  // where a layer begins
    for (const ForeignBox* box : boxes)
      edges.insert(edges.end(), {own(box).offset, own(box).offset + own(box).size});
    std::ranges::sort(edges);
    edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
    std::ranges::sort(boxes, {}, [&](const ForeignBox* box) { return own(box).offset; });
    std::vector<const ForeignBox*> layer;
    auto next = boxes.begin();
    for (const std::int64_t edge : edges) {
      if (edge == shape_[dim]) break;
      std::erase_if(layer,
                    [&](const ForeignBox* box) { return own(box).offset + own(box).size <= edge; });
      for (; next != boxes.end() && own(*next).offset == edge; ++next) layer.push_back(*next);
      visits_ += std::ssize(layer) + 1;
      if (visits_ > kMaxVisits) return "its chunks lie in no order";
      if (std::string found = problem(layer, dim + 1); !found.empty()) return found;
    }
    return "";
  }

 private:
  static constexpr const char* kMissing = "no chunk holds a part of it";
  static constexpr const char* kTwice = "two chunks hold a part of it";

  std::span<const std::int64_t> shape_;
  std::int64_t visits_ = 0;
};

}  // namespace

ForeignBox::ForeignBox(const std::vector<std::int64_t>& shape,
                       const std::vector<std::int64_t>& offsets,
                       const std::vector<std::int64_t>& sizes) {
  for (std::size_t d = 0; d < shape.size(); ++d)
    dims_.push_back({.shape = shape[d], .offset = offsets[d], .size = sizes[d]});
  // Runs end where a dim is not whole.
  for (std::size_t d = dims_.size(); d-- > 0;) {
    run_ *= dims_[d].size;
    if (dims_[d].size != dims_[d].shape) break;
  }
}

std::int64_t ForeignBox::numel() const {
  std::int64_t product = 1;
  for (const Dim& dim : dims_) product *= dim.size;
  return product;
}

std::int64_t ForeignBox::below(std::int64_t element) const {
  std::int64_t stride = 1, own_stride = 1;
  for (const Dim& dim : dims_) {
    stride *= dim.shape;
    own_stride *= dim.size;
  }
  if (element >= stride) return own_stride;
  std::int64_t count = 0;
  for (const Dim& dim : dims_) {
    stride /= dim.shape;
    own_stride /= dim.size;
    const std::int64_t at = element / stride % dim.shape - dim.offset;
    count += std::clamp<std::int64_t>(at, 0, dim.size) * own_stride;
    if (at < 0 || at >= dim.size) break;
  }
  return count;
}

std::int64_t ForeignBox::place(std::int64_t own) const {
  std::int64_t element = 0, stride = 1;
  for (std::size_t d = dims_.size(); d-- > 0;) {
    element += (dims_[d].offset + own % dims_[d].size) * stride;
    own /= dims_[d].size;
    stride *= dims_[d].shape;
  }
  return element;
}

std::string cover_problem(const std::vector<std::int64_t>& shape,
                          const std::vector<ForeignBox>& boxes) {
  if (num_elements(shape) == 0) return "";
  std::vector<const ForeignBox*> all;
  for (const ForeignBox& box : boxes) all.push_back(&box);
  return Cover(shape).problem(std::move(all), 0);
}

}  // namespace dstrain
