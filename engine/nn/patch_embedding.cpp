#include "engine/nn/patch_embedding.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/kernels/ops.h"
#include "engine/kernels/tensor/ops_tensor.h"
#include "engine/nn/layer_cost.h"

namespace dstrain {

void PatchEmbedding::add_parameters(std::vector<Parameter*>& list) {
  if (shape_.first_tokens > 0) list.push_back(&first_tokens_);
  list.push_back(&positions_);
  projection_.add_parameters(list);
}

Features PatchEmbedding::run(LayerPass& pass, const Features& images_BCHW) {
  if (pass.costs != nullptr) {
    const std::int64_t samples = images_BCHW.size.shape.at(0);
    Features made = images_BCHW.sized(
        {samples * shape_.tokens() / tensor_.count, projection_.weight().shape.at(0)});
    add_cost(*pass.costs, samples, made);
    return made;
  }
  const at::Tensor& images = images_BCHW.tensor;
  const std::int64_t used = shape_.side() * shape_.patch_size;
  const at::Tensor patches =
      ops::patchify(images.narrow(2, 0, used).narrow(3, 0, used), shape_.patch_size);
  const at::Tensor rows =
      ops::embed_sequence(projection_.forward(patches), images.size(0),
                          shape_.first_tokens > 0 ? &first_tokens_ : nullptr, positions_,
                          {.from = shape_.position_side, .to = shape_.side()});
  return {.tensor = ops::own_rows(rows, tensor_)};
}

void PatchEmbedding::add_cost(LayerCosts& costs, std::int64_t samples, const Features& made) const {
  const int width = costs.compute_bytes();
  const std::int64_t patch_rows = samples * shape_.patches(), columns = made.columns();
  // Rows of patches, for the weight's gradient.
  const Bytes pixels = patch_rows * shape_.channels * shape_.patch_size * shape_.patch_size * width,
              embedded = patch_rows * columns * width;
  costs.require(SizeOf::width, columns, kernels::kEmbeddingDims);
  LayerCost patches = projection_.cost(patch_rows, width, /*input_is_kept=*/true);
  patches.saved_bytes += pixels;
  costs.add(std::move(patches));
  LayerCost embeddings;
  const std::string& positions = positions_.parts.front().name;
  if (shape_.first_tokens > 0) {
    embeddings.name = first_tokens_.parts.front().name + ", ";
    count(first_tokens_, embeddings);
    embeddings.name += positions.substr(positions.rfind("position"));
  } else {
    embeddings.name = positions;
  }
  count(positions_, embeddings);
  costs.add(std::move(embeddings));
  // The projected patches, forward until the positions are added; their gradient, and that of the
  // sequence, backward. Of several ranks' rows, all before the own ones are taken.
  const Bytes all_rows = tensor_.whole() ? 0 : samples * shape_.tokens() * columns * width;
  // Positions of the files and those that are added, in fp32, and products between them.
  const std::int64_t from = shape_.position_side, to = shape_.side();
  const Bytes resized =
      from == to ? 0 : (from * from + 2 * from * to + 2 * to * to) * columns * kFloatBytes;
  // The used part of images with a rest is made dense.
  const Bytes used = shape_.image_size % shape_.patch_size == 0 ? 0 : pixels;
  costs.hold(std::max({embedded, resized, used}) + all_rows,
             embedded + made.bytes() + all_rows + resized);
}

}  // namespace dstrain
