#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/mesh/shard.h"

namespace dstrain {

/// A box of a tensor of any number of dims: `sizes[d]` places of dim d from `offsets[d]` on, which
/// lie inside of `shape`. Its elements are counted in the order of its own dims, which is the
/// order of the whole tensor's.
class ForeignBox {
 public:
  ForeignBox(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& offsets,
             const std::vector<std::int64_t>& sizes);

  [[nodiscard]] std::int64_t numel() const;
  /// How many elements of the box stand before `element` of the whole tensor.
  [[nodiscard]] std::int64_t below(std::int64_t element) const;
  /// The element of the whole tensor that is the box's `own`.
  [[nodiscard]] std::int64_t place(std::int64_t own) const;
  /// Elements of the box from `own` on that follow one another in the whole tensor, too.
  [[nodiscard]] std::int64_t run(std::int64_t own) const { return run_ - own % run_; }
  /// The first element of the whole tensor that is the box's, to behind the last.
  [[nodiscard]] Range extent() const { return {place(0), place(numel() - 1) + 1}; }

  struct Dim {
    std::int64_t shape = 1, offset = 0, size = 1;
  };
  [[nodiscard]] std::span<const Dim> dims() const { return dims_; }

 private:
  std::vector<Dim> dims_;
  std::int64_t run_ = 1;
};

/// What is wrong where the boxes, none of which is empty, do not hold each element of the tensor
/// once: "two chunks hold a part of it"; else empty. Work is bounded, far above what a regular cut
/// takes.
[[nodiscard]] std::string cover_problem(const std::vector<std::int64_t>& shape,
                                        const std::vector<ForeignBox>& boxes);

}  // namespace dstrain
