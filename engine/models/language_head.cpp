#include "engine/models/language_head.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "engine/base/error.h"
#include "engine/comm/communicator.h"
#include "engine/kernels/tensor/ops_tensor.h"
#include "engine/nn/last_tokens.h"

namespace dstrain {

LanguageShape language_shape(const ModelSizes& sizes, const ModelInputs& inputs, double softcap) {
  return {.width = sizes.width,
          .vocab_size = sizes.vocab_size,
          .sequence = inputs.own_tokens(),
          .part = inputs.splits.sequence,
          .tensor = inputs.splits.tensor,
          .joined = inputs.tile_rows > 0,
          .pairs = inputs.pairs,
          .softcap = softcap};
}

Model language_model(Blocks blocks, const ModelSizes& sizes, const ModelInputs& inputs,
                     std::string config_json, std::vector<std::string> notes) {
  return {.blocks = std::move(blocks),
          .config_json = std::move(config_json),
          .vocab_size = static_cast<int>(sizes.vocab_size),
          .sequence = inputs.sequence,
          .experts_per_token = static_cast<int>(sizes.experts_per_token),
          .notes = std::move(notes),
          .tile_rows = inputs.tile_rows,
          .tokens = inputs.own_tokens()};
}

LanguageHead::LanguageHead(Norm norm, const LanguageShape& shape, Parameter* tied,
                           const InitialWeights& init)
    : LayeredBlock(Works::on_tokens),
      name_("lm_head"),
      shape_(shape),
      norm_(std::move(norm)),
      loss_(kLanguageHeadWeight, {shape.vocab_size, shape.width}, tied, init,
            {.part = shape.part,
             .tensor = shape.tensor,
             .pairs = shape.pairs,
             .softcap = shape.softcap}) {}

std::vector<Parameter*> LanguageHead::parameters() {
  std::vector<Parameter*> list = {&loss_.table()};
  std::visit([&](auto& norm) { norm.add_parameters(list); }, norm_);
  return list;
}

Tensors LanguageHead::input_of(const Tensors& input, const Batch&) const {
  DSTRAIN_CHECK(input.size() == (shape_.joined ? 1u : 2u), name_ + ": wrong number of inputs");
  return input;
}

std::vector<BoundaryTensor> LanguageHead::input_sizes(const BatchShape& shape) const {
  const std::int64_t rows = shape.micro_batch * shape_.sequence / shape_.tensor.count;
  return std::vector<BoundaryTensor>(shape_.joined ? 1 : 2,
                                     {{rows, shape_.width}, shape.compute_bytes});
}

Features LanguageHead::normalize(LayerPass& pass, const std::vector<Features>& input) {
  return std::visit([&](auto& norm) { return norm.run(pass, input, /*keeps_output=*/true); },
                    norm_);
}

at::Tensor LanguageHead::logits(const Tensors& input) {
  std::vector<Features> features;
  for (const at::Tensor& tensor : input_of(input, {})) features.push_back({.tensor = tensor});
  LayerPass pass;
  return loss_.logits(normalize(pass, features).tensor);
}

void LanguageHead::choose_next(const std::vector<Features>& input, const BlockContext& context) {
  const at::Tensor& next_tokens = context.next_tokens;
  Communicator* ranks = context.peers.along(Axis::tensor);
  const std::int64_t batch = next_tokens.size(0),
                     tokens = input[0].tensor.size(0) * shape_.tensor.count / batch;
  const LastTokens last = last_tokens(next_tokens, tokens, shape_.part);
  const at::Tensor rows = at::arange(batch, next_tokens.options()) * tokens + last.places;
  std::vector<Features> chosen;
  for (const Features& all : input)
    chosen.push_back({.tensor = ranks == nullptr ? all.tensor.index_select(0, rows)
                                                 : ops::collect_rows(all.tensor, rows, ranks)});
  LayerPass pass;
  const at::Tensor found = loss_.most_likely(normalize(pass, chosen).tensor, ranks);
  next_tokens.copy_(agreed(found, last, context.peers.along(Axis::sequence)));
}

std::vector<Features> LanguageHead::run(LayerPass& pass, const std::vector<Features>& input) {
  if (pass.context == nullptr || !pass.context->next_tokens.defined())
    return {loss_.run(pass, normalize(pass, input))};
  choose_next(input, *pass.context);
  return {{.tensor = at::zeros({}, input[0].tensor.options().dtype(at::kFloat))}};
}

}  // namespace dstrain
