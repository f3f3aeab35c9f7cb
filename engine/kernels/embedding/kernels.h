#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/kernels/dtype.h"
#include "engine/kernels/taken_sizes.h"

/// Tokens and patches to rows: arguments and the GPU version. The rules are in
/// engine/kernels/kernels.h.
namespace dstrain::kernels {

/// [B, C, H, W] -> [B * H/P * W/P, C * P * P], each row in the order of a convolution's weight.
struct Patchify {
  const void* images;
  void* patches;
  std::int64_t batch, channels, height, width, patch;
  DType dtype;
};

/// out[b, t] = token t + positions[t], where the first tokens are the same for all samples and the
/// rest are the sample's patches.
struct EmbedSequence {
  const void* patches;       ///< [batch, tokens - first, dim]
  const void* first_tokens;  ///< [first, dim]
  const void* positions;     ///< [tokens, dim]
  void* out;                 ///< [batch, tokens, dim]
  std::int64_t batch, tokens, dim;
  DType dtype;
  std::int64_t first = 1;
};

/// Copies the patches' gradient out and adds the sums over the batch to both parameters, reading
/// grad_out once.
struct EmbedSequenceBackward {
  const void* grad_out;
  void* grad_patches;
  float* grad_first_tokens;
  float* grad_positions;
  std::int64_t batch, tokens, dim;
  DType dtype;
  std::int64_t first = 1;
};

/// out[row] = table[tokens[row]]; a token outside [0, vocab) gives a row of nan.
struct EmbedTokens {
  const std::int64_t* tokens;     ///< [rows]
  const void* table;              ///< [vocab, dim]
  void* out;                      ///< [rows, dim]
  std::int64_t rows, vocab, dim;  ///< dim: kEmbeddingDims
  DType dtype;
};

/// grad_table[token] += sum of grad_out over the token's rows, in an order given by the tokens; one
/// outside [0, vocab) is left out.
struct EmbedTokensBackward {
  const std::int64_t* tokens;
  const void* grad_out;  ///< [rows, dim]
  void* grad_table;      ///< [vocab, dim], f32 or as `table`
  void* scratch;         ///< embed_tokens_scratch bytes
  std::int64_t rows, vocab, dim;
  DType dtype;
  DType table = DType::f32;  ///< or bf16
};
[[nodiscard]] std::int64_t embed_tokens_scratch(std::int64_t rows, std::int64_t vocab,
                                                std::int64_t dim);

namespace cuda {
void patchify(const Patchify& args, cudaStream_t stream);
void embed_sequence(const EmbedSequence& args, cudaStream_t stream);
void embed_sequence_backward(const EmbedSequenceBackward& args, cudaStream_t stream);
void embed_tokens(const EmbedTokens& args, cudaStream_t stream);
void embed_tokens_backward(const EmbedTokensBackward& args, cudaStream_t stream);
}  // namespace cuda

}  // namespace dstrain::kernels
