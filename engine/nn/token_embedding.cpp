#include "engine/nn/token_embedding.h"

namespace dstrain {

TokenEmbedding::TokenEmbedding(const std::string& prefix, std::int64_t vocab_size,
                               std::int64_t width, const InitialWeights& init) {
  table_.hold({{prefix + ".weight", {vocab_size, width}}});
  table_.init = init.kind;
  table_.init_std = init.std;
}

at::Tensor TokenEmbedding::forward(const at::Tensor& tokens_BT) {
  return ops::embed_tokens(tokens_BT, table_);
}

}  // namespace dstrain
