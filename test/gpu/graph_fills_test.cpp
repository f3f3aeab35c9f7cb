#include "engine/device/graph_fills.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/device/device.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

std::int64_t count_fills(cudaGraph_t graph) {
  std::size_t count = 0;
  C10_CUDA_CHECK(::cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  C10_CUDA_CHECK(::cudaGraphGetNodes(graph, nodes.data(), &count));
  return std::ranges::count_if(nodes, [](cudaGraphNode_t node) {
    cudaGraphNodeType type{};
    C10_CUDA_CHECK(::cudaGraphNodeGetType(node, &type));
    return type == cudaGraphNodeTypeMemset;
  });
}

TEST_CASE("GPU: kernels in the place of a graph's small fills do the same in the same order",
          "[gpu][graph]") {
  if (num_gpus() == 0) return;
  constexpr std::int64_t kBytes = 1 << 20;
  const auto bytes = at::TensorOptions(at::kByte).device(at::kCUDA);
  const at::Tensor expected = at::full({kBytes}, 7, bytes), found = expected.clone();
  // Each overlaps the one before: the order counts. The last two are too large and of two rows.
  const auto fill = [](unsigned value, unsigned element_size, std::size_t width) {
    return cudaMemsetParams{.dst = nullptr,
                            .pitch = 0,
                            .value = value,
                            .elementSize = element_size,
                            .width = width,
                            .height = 1};
  };
  std::vector<cudaMemsetParams> fills = {fill(1, 1, 4099), fill(0x0302, 2, 1000),
                                         fill(0x07060504, 4, 3), fill(11, 1, 1 << 19),
                                         fill(12, 1, 8)};
  fills.back().pitch = 64;
  fills.back().height = 2;
  const auto run = [&](const at::Tensor& x, bool replaced) {
    cudaGraph_t graph = nullptr;
    C10_CUDA_CHECK(::cudaGraphCreate(&graph, 0));
    std::vector<cudaGraphNode_t> chain;
    const auto previous = [&] { return chain.empty() ? nullptr : &chain.back(); };
    const auto add = [&](const cudaMemsetParams& any) {
      cudaMemsetParams at = any;
      at.dst = x.data_ptr();
      cudaGraphNode_t node = nullptr;
      C10_CUDA_CHECK(::cudaGraphAddMemsetNode(&node, graph, previous(), chain.size() > 0, &at));
      chain.push_back(node);
    };
    // Large first, so that the small ones are seen; a copy out of the filled bytes between them.
    add(fills[3]);
    add(fills[0]);
    add(fills[1]);
    cudaGraphNode_t copy = nullptr;
    C10_CUDA_CHECK(::cudaGraphAddMemcpyNode1D(&copy, graph, previous(), 1,
                                              static_cast<char*>(x.data_ptr()) + (kBytes / 2),
                                              x.data_ptr(), 4096, cudaMemcpyDeviceToDevice));
    chain.push_back(copy);
    add(fills[2]);
    add(fills[4]);
    if (replaced) {
      REQUIRE(replace_small_fills(graph) == cudaSuccess);
      CHECK(count_fills(graph) == 2);
    }
    cudaGraphExec_t work = nullptr;
    C10_CUDA_CHECK(::cudaGraphInstantiate(&work, graph, 0));
    for (int i = 0; i < 2; ++i) C10_CUDA_CHECK(::cudaGraphLaunch(work, nullptr));
    C10_CUDA_CHECK(::cudaDeviceSynchronize());
    C10_CUDA_CHECK(::cudaGraphExecDestroy(work));
    C10_CUDA_CHECK(::cudaGraphDestroy(graph));
  };
  run(expected, false);
  run(found, true);
  CHECK(at::equal(found, expected));
  CHECK(found[kBytes / 2].item<int>() == 2);
  CHECK(found[0].item<int>() == 12);
  CHECK(found[9].item<int>() == 5);
}

}  // namespace
}  // namespace dstrain
