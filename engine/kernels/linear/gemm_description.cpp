#include "engine/kernels/linear/gemm_description.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/product_workspace.h"

namespace dstrain::ops {
namespace {

constexpr int kCandidates = 40;

/// Sizes of tiles, clusters of blocks and orders of work that were fastest for some product of the
/// recipes on an H200.
constexpr std::array kTiles = {
    CUBLASLT_MATMUL_TILE_64x128,  CUBLASLT_MATMUL_TILE_256x64,  CUBLASLT_MATMUL_TILE_128x128,
    CUBLASLT_MATMUL_TILE_128x160, CUBLASLT_MATMUL_TILE_128x192, CUBLASLT_MATMUL_TILE_128x256,
    CUBLASLT_MATMUL_TILE_192x128, CUBLASLT_MATMUL_TILE_192x192, CUBLASLT_MATMUL_TILE_176x128,
    CUBLASLT_MATMUL_TILE_256x96,  CUBLASLT_MATMUL_TILE_256x128, CUBLASLT_MATMUL_TILE_320x128};
constexpr std::array kClusters = {CUBLASLT_CLUSTER_SHAPE_1x1x1, CUBLASLT_CLUSTER_SHAPE_2x1x1,
                                  CUBLASLT_CLUSTER_SHAPE_1x2x1, CUBLASLT_CLUSTER_SHAPE_4x1x1,
                                  CUBLASLT_CLUSTER_SHAPE_2x2x1, CUBLASLT_CLUSTER_SHAPE_4x2x1,
                                  CUBLASLT_CLUSTER_SHAPE_2x4x1};
constexpr int kMaxOrder = 7;

template <typename Value>
Value config(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t what) {
  Value value{};
  std::size_t written = 0;
  (void)cublasLtMatmulAlgoConfigGetAttribute(&algorithm, what, &value, sizeof(value), &written);
  return value;
}

template <typename Value>
bool set_config(cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t what,
                Value value) {
  return cublasLtMatmulAlgoConfigSetAttribute(&algorithm, what, &value, sizeof(value)) ==
         CUBLAS_STATUS_SUCCESS;
}

cudaDataType_t library_type(c10::ScalarType type) {
  switch (type) {
    case c10::kFloat:
      return CUDA_R_32F;
    case c10::kBFloat16:
      return CUDA_R_16BF;
    case c10::kHalf:
      return CUDA_R_16F;
    case c10::kFloat8_e4m3fn:
      return CUDA_R_8F_E4M3;
    case c10::kFloat8_e5m2:
      return CUDA_R_8F_E5M2;
    default:
      throw Error(ErrorKind::internal, fmt::format("product of {}", c10::toString(type)));
  }
}

[[noreturn]] void fail(const GemmKey& key, cublasStatus_t status) {
  const bool fp8 = c10::isFloat8Type(key.a_type);
  throw Error(ErrorKind::internal,
              fmt::format("product {}: {}", key.text(), cublasLtGetStatusString(status)),
              fp8 ? "FP8 needs a GPU of compute capability 8.9 or higher" : "");
}

template <typename Value>
void set(const GemmKey& key, cublasLtMatmulDescOpaque_t& product,
         cublasLtMatmulDescAttributes_t what, Value value) {
  require_good(key, cublasLtMatmulDescSetAttribute(&product, what, &value, sizeof(value)));
}

void layout(const GemmKey& key, cublasLtMatrixLayoutOpaque_t& layout, c10::ScalarType type,
            std::int64_t rows, std::int64_t cols, std::int64_t stride, bool transposed) {
  const auto fast = static_cast<std::uint64_t>(transposed ? rows : cols),
             slow = static_cast<std::uint64_t>(transposed ? cols : rows);
  require_good(key, cublasLtMatrixLayoutInit(&layout, library_type(type), fast, slow, stride));
}

}  // namespace

void require_good(const GemmKey& key, cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS) fail(key, status);
}

GemmDescription::GemmDescription(const GemmCall& call) {
  const GemmKey& key = call.key;
  require_good(key, cublasLtMatmulDescInit(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  set(key, product_, CUBLASLT_MATMUL_DESC_TRANSA, key.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(key, product_, CUBLASLT_MATMUL_DESC_TRANSB, key.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (key.bias || key.row_sums) {
    set(key, product_, CUBLASLT_MATMUL_DESC_EPILOGUE,
        key.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_BGRADB);
    const cudaDataType_t type = key.bias ? library_type(key.out_type) : CUDA_R_32F;
    set(key, product_, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type);
    set(key, product_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.vector);
  }
  if (call.b_scale != nullptr)
    set(key, product_, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, call.b_scale);
  if (call.a_scale != nullptr)
    set(key, product_, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, call.a_scale);
  if (key.fast) set(key, product_, CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{1});
  layout(key, a_, key.a_type, key.m, key.k, key.a_stride, key.a_transposed);
  layout(key, b_, key.b_type, key.k, key.n, key.b_stride, key.b_transposed);
  layout(key, out_, key.out_type, key.m, key.n, key.out_stride, false);
}

std::vector<cublasLtMatmulAlgo_t> GemmDescription::candidates(cublasLtHandle_t library,
                                                              const GemmKey& key) {
  cublasLtMatmulPreferenceOpaque_t preference;
  require_good(key, cublasLtMatmulPreferenceInit(&preference));
  const auto want = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
    require_good(key,
                 cublasLtMatmulPreferenceSetAttribute(&preference, what, &value, sizeof(value)));
  };
  want(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::size_t>(kProductWorkspace));
  for (const auto operand :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    want(operand, static_cast<std::uint32_t>(key.alignment));
  }
  cublasLtMatmulHeuristicResult_t results[kCandidates];
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      library, &product_, &b_, &a_, &out_, &out_, &preference, kCandidates, results, &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (key.row_sums && status != CUBLAS_STATUS_SUCCESS))
    return {};
  require_good(key, status);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < found; ++i) {
    if (results[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(results[i].algo);
  }
  return algorithms;
}

std::vector<cublasLtMatmulAlgo_t> GemmDescription::variations(
    cublasLtHandle_t library, std::vector<cublasLtMatmulAlgo_t> candidates) {
  if (candidates.empty()) return candidates;
  std::vector<int> tiles(kTiles.begin(), kTiles.end());
  for (const auto& candidate : candidates)
    tiles.push_back(config<int>(candidate, CUBLASLT_ALGO_CONFIG_TILE_ID));
  std::ranges::sort(tiles);
  tiles.erase(std::ranges::unique(tiles).begin(), tiles.end());
  const cublasLtMatmulAlgo_t proposed = candidates.front();
  int orders = 0;
  std::size_t written = 0;
  if (cublasLtMatmulAlgoCapGetAttribute(&proposed, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX, &orders,
                                        sizeof(orders), &written) != CUBLAS_STATUS_SUCCESS)
    return candidates;
  const auto known = [&](const cublasLtMatmulAlgo_t& algorithm) {
    return std::ranges::any_of(candidates, [&](const cublasLtMatmulAlgo_t& other) {
      return std::ranges::equal(algorithm.data, other.data);
    });
  };
  for (const int tile : tiles) {
    for (const cublasLtClusterShape_t cluster : kClusters) {
      for (int order = 0; order <= std::min(orders, kMaxOrder); ++order) {
        cublasLtMatmulAlgo_t algorithm = proposed;
        const bool set = set_config(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID, tile) &&
                         set_config(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID,
                                    static_cast<std::uint16_t>(cluster)) &&
                         set_config(algorithm, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, order);
        if (set && !known(algorithm) && runs(library, algorithm)) candidates.push_back(algorithm);
      }
    }
  }
  return candidates;
}

std::optional<std::size_t> GemmDescription::needed(cublasLtHandle_t library,
                                                   const cublasLtMatmulAlgo_t& algorithm) {
  cublasLtMatmulHeuristicResult_t result;
  if (cublasLtMatmulAlgoCheck(library, &product_, &b_, &a_, &out_, &out_, &algorithm, &result) !=
      CUBLAS_STATUS_SUCCESS)
    return std::nullopt;
  return result.workspaceSize;
}

bool GemmDescription::runs(cublasLtHandle_t library, const cublasLtMatmulAlgo_t& algorithm) {
  const std::optional<std::size_t> bytes = needed(library, algorithm);
  return bytes && *bytes <= static_cast<std::size_t>(kProductWorkspace);
}

cublasStatus_t GemmDescription::launch(cublasLtHandle_t library, const GemmCall& call,
                                       const cublasLtMatmulAlgo_t& algorithm,
                                       const GemmWorkspace& workspace, cudaStream_t stream) {
  return cublasLtMatmul(library, &product_, &call.alpha, call.b, &b_, call.a, &a_, &call.beta,
                        call.out, &out_, call.out, &out_, &algorithm, workspace.memory,
                        workspace.bytes, stream);
}

}  // namespace dstrain::ops
