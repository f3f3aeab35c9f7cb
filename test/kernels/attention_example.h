#pragma once

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "engine/kernels/attention/attention_heads.h"
#include "test/kernels/attention_bounds.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"
#include "test/support/near.h"

namespace dstrain::test {

/// Rows of qkv and the gradient of attention's output, with what the formula in double makes of
/// them.
class AttentionExample {
 public:
  AttentionExample(at::Device device, const ops::AttentionShape& shape,
                   const std::vector<std::int64_t>& lengths, at::ScalarType type,
                   bool stretched = false)
      : shape_(shape), longest_(*std::max_element(lengths.begin(), lengths.end())) {
    Random random(7, device);
    const std::int64_t rows = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    qkv = random({rows, shape.qkv_width()}, type);
    dy = random({rows, shape.width()}, type);
    const at::Tensor qkv64 = exact(qkv), y = plain_attention(qkv64, shape, lengths);
    y.backward(exact(dy).detach());
    y64_ = y.detach();
    dqkv64_ = qkv64.grad();
    if (device.is_cpu()) bounds_ = attention_bounds(qkv, dy, shape, lengths, stretched);
  }

  template <typename Attend>
  void require_formula(const Attend& attend) const {
    const at::Tensor x = leaf(qkv), y = attend(x);
    y.backward(dy);
    require_formula(y, x.grad());
  }

  void require_formula(const at::Tensor& y, const at::Tensor& dqkv) const {
    if (bounds_) {
      REQUIRE(far(y, y64_, bounds_->out) == "");
      REQUIRE(far(dqkv, dqkv64_, bounds_->grad) == "");
      return;
    }
    const at::ScalarType type = qkv.scalar_type();
    {
      INFO("output");
      require_close(y, y64_);
    }
    const ops::Heads grads = ops::split_heads(dqkv, shape_, {}),
                     grads64 = ops::split_heads(dqkv64_, shape_, {});
    for (std::size_t part = 0; part < 3; ++part) {
      INFO("gradient of " << (part == 0 ? "queries" : part == 1 ? "keys" : "values"));
      if (longest_ == 1 && part < 2) {  // one token sees itself whatever it is
        REQUIRE(grads[part].abs().max().item<double>() < unit_roundoff(type));
      } else {
        require_close(grads[part], grads64[part]);
      }
    }
  }

  at::Tensor qkv, dy;

 private:
  /// The largest error within `far`'s bound, and the norm of all errors within three roundings of
  /// the result: scores, probabilities and results are rounded once each, independently.
  void require_close(const at::Tensor& actual, const at::Tensor& expected) const {
    const at::ScalarType type = qkv.scalar_type();
    REQUIRE(far(actual, expected, type, longest_) == "");
    REQUIRE(relative_error(actual, expected) <
            3 * unit_roundoff(type) + 0x1p-22 * static_cast<double>(longest_));
  }

  ops::AttentionShape shape_;
  std::int64_t longest_;
  at::Tensor y64_, dqkv64_;
  std::optional<AttentionBounds> bounds_;  ///< on a CPU
};

}  // namespace dstrain::test
