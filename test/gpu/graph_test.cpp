#include "engine/device/graph.h"

#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/device/device.h"
#include "engine/device/graph_zeros.h"
#include "engine/kernels/linear/gemm.h"
#include "test/gpu/compare.h"
#include "test/kernels/tensors.h"

namespace dstrain {
namespace {

/// A product of a micro-batch of ViT-H, and one whose result it needs.
struct Chain {
  test::Random random{3};
  at::Tensor x = random({16448, 1280}, test::short_type()).to(at::kCUDA),
             first = (random({5120, 1280}, test::short_type()) / 36).to(at::kCUDA),
             second = (random({1280, 5120}, test::short_type()) / 72).to(at::kCUDA);

  void run(const at::Tensor& middle, const at::Tensor& y) const {
    ops::multiply(x, first.t(), middle);
    ops::multiply(middle, second.t(), y);
  }
};

TEST_CASE("GPU: products in a graph have no fills of their own, and the same bits",
          "[gpu][graph]") {
  const Chain chain;
  const at::Tensor middle = at::empty({16448, 5120}, chain.x.options()),
                   y = at::empty_like(chain.x), expected = at::empty_like(chain.x);
  chain.run(middle, expected);
  const Stream stream = Stream::from_pool(middle.device());
  constexpr int kTimes = 20;
  Graph graph;
  std::int64_t work = 0;
  synchronize(middle.device());
  graph.capture(
      stream,
      [&] {
        const std::int64_t before = Graph::captured_work(stream);
        REQUIRE(before == 1);  // the fill of all words
        for (int i = 0; i < kTimes; ++i) chain.run(middle, y);
        work = Graph::captured_work(stream) - before;
      },
      nullptr);
  CHECK(work == 2 * kTimes);
  for (int i = 0; i < 3; ++i) {
    middle.zero_();
    y.zero_();
    synchronize(middle.device());
    graph.replay(stream);
    stream.synchronize();
    REQUIRE(y.equal(expected));
  }
}

TEST_CASE("GPU: a graph gives its zeros away once, and none to work outside", "[gpu][graph]") {
  const Stream stream = Stream::from_pool(at::Device(at::kCUDA, 0));
  REQUIRE(GraphZeros::take(stream.handle()) == nullptr);
  const at::TensorOptions bytes = at::TensorOptions(at::kByte).device(stream.device());
  const at::Tensor seen = at::empty({GraphZeros::kBytes}, bytes);
  std::vector<void*> parts;
  Graph graph;
  graph.capture(
      stream,
      [&] {
        while (void* const part = GraphZeros::take(stream.handle())) parts.push_back(part);
        REQUIRE(GraphZeros::take(Stream::from_pool(stream.device()).handle()) == nullptr);
        const at::Tensor all = at::from_blob(parts.front(), {GraphZeros::kBytes}, bytes);
        seen.copy_(all);
        all.fill_(7);  // as a kernel leaves its count
      },
      nullptr);
  REQUIRE(parts.size() == GraphZeros::kBytes / GraphZeros::kMaxPart);
  for (std::size_t i = 1; i < parts.size(); ++i)
    REQUIRE(static_cast<std::byte*>(parts[i]) - static_cast<std::byte*>(parts[i - 1]) ==
            GraphZeros::kMaxPart);
  for (int i = 0; i < 2; ++i) {
    seen.fill_(9);
    synchronize(stream.device());
    graph.replay(stream);
    stream.synchronize();
    REQUIRE(seen.count_nonzero().item<std::int64_t>() == 0);
  }
}

}  // namespace
}  // namespace dstrain
