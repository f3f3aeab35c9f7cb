#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "engine/kernels/linear/gemm_library.h"

/// A product as cuBLASLt sees it; of gemm_library.cpp and gemm_trials.cpp.
namespace dstrain::ops {

struct GemmWorkspace {
  void* memory = nullptr;
  std::size_t bytes = 0;
};

/// Throws Error{internal} that names the product unless `status` is success.
void require_good(const GemmKey& key, cublasStatus_t status);

/// A call in the library's words. It is column-major: our rows are its columns, so it multiplies
/// out^T [n, m] = b^T a^T.
class GemmDescription {
 public:
  explicit GemmDescription(const GemmCall& call);

  /// What the library proposes, its first choice first.
  [[nodiscard]] std::vector<cublasLtMatmulAlgo_t> candidates(cublasLtHandle_t library,
                                                             const GemmKey& key);
  /// Those, and what runs of the same algorithms with other tiles, clusters of blocks and orders.
  [[nodiscard]] std::vector<cublasLtMatmulAlgo_t> variations(
      cublasLtHandle_t library, std::vector<cublasLtMatmulAlgo_t> candidates);
  /// Bytes of workspace that the algorithm needs; nothing where it does not run.
  [[nodiscard]] std::optional<std::size_t> needed(cublasLtHandle_t library,
                                                  const cublasLtMatmulAlgo_t& algorithm);
  [[nodiscard]] bool runs(cublasLtHandle_t library, const cublasLtMatmulAlgo_t& algorithm);

  [[nodiscard]] cublasStatus_t launch(cublasLtHandle_t library, const GemmCall& call,
                                      const cublasLtMatmulAlgo_t& algorithm,
                                      const GemmWorkspace& workspace, cudaStream_t stream);

 private:
  cublasLtMatmulDescOpaque_t product_{};
  cublasLtMatrixLayoutOpaque_t a_{}, b_{}, out_{};
};

}  // namespace dstrain::ops
