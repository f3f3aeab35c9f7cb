#include "engine/models/upcycled_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/models/adapters.h"
#include "engine/models/config_sizes.h"
#include "engine/models/qwen2/qwen2.h"
#include "engine/models/random_weights.h"

namespace dstrain {
namespace {

const ModelFamily& dense_family() { return *family_of_type("qwen2"); }

/// The sizes that both models have must be equal.
void compare_with_dense(const DecoderConfig& config, const DecoderConfig& dense,
                        const std::string& folder, Problems& problems) {
  for (const ModelSize& size : dense_family().sizes) {
    if (size.key == "mlp_width" || config.*size.size == dense.*size.size) continue;
    problems.push_back(fmt::format("model.{}: {}, but the dense model {} has {} {}", size.key,
                                   config.*size.size, folder, size.file_keys[0], dense.*size.size));
  }
}

void compare_with_mlp(const DecoderConfig& config, std::int64_t mlp_width, Problems& problems) {
  const std::int64_t chosen = config.experts_per_token;
  if (2 * config.shared_width != mlp_width) {
    problems.push_back(fmt::format("model.shared_width: {} is not half of the dense MLP's {}",
                                   config.shared_width, mlp_width));
  }
  if (2 * chosen * config.expert_width != mlp_width) {
    problems.push_back(fmt::format(
        "model.expert_width: {} times model.experts_per_token ({}) is not half of the dense MLP's "
        "{}",
        config.expert_width, chosen, mlp_width));
  }
  if (config.experts % chosen != 0) {
    problems.push_back(
        fmt::format("model.experts: {} is not a multiple of model.experts_per_token ({})",
                    config.experts, chosen));
  }
}

/// "model.layers.3.mlp" and "experts.5.gate_proj" of
/// "model.layers.3.mlp.experts.5.gate_proj.weight".
struct MlpTensor {
  std::string mlp;
  std::string_view module;
};

std::optional<MlpTensor> mlp_tensor(const std::string& name) {
  constexpr std::string_view kMlp = ".mlp.", kWeight = ".weight";
  const std::size_t place = name.find(kMlp);
  if (place == std::string::npos || !name.ends_with(kWeight)) return std::nullopt;
  const std::size_t begin = place + kMlp.size();
  return MlpTensor{
      .mlp = name.substr(0, begin - 1),
      .module = std::string_view(name).substr(begin, name.size() - kWeight.size() - begin)};
}

class UpcycledWeights final : public WeightSource {
 public:
  UpcycledWeights(Model dense, std::unique_ptr<WeightSource> source, std::int64_t chosen,
                  std::int64_t seed)
      : dense_(std::move(dense)), source_(std::move(source)), chosen_(chosen), seed_(seed) {
    for (const Parameter* parameter : all_parameters(dense_)) {
      for (const Piece& part : parameter->parts)
        places_.emplace(part.name, Place{parameter, &part});
    }
  }

  void read_whole(const Parameter& parameter, const Piece& part, std::int64_t begin,
                  std::span<float> out) const override {
    if (is_adapter(part.name))
      return draw_weights(seed_, part.name, parameter.init, parameter.init_std, begin, out);
    const std::optional<MlpTensor> tensor = mlp_tensor(part.name);
    if (!tensor) return read_dense(part.name, begin, out);
    if (tensor->module == "gate") return draw_router(parameter, part, begin, out);
    if (tensor->module == "shared_expert_gate") {
      std::ranges::fill(out, 0.0f);
      return;
    }
    read_expert(*tensor, part, begin, out);
  }

  [[nodiscard]] bool read_state(const BlockState& state, std::span<float> out) const override {
    return source_->read_state(state, out);
  }

 private:
  struct Place {
    const Parameter* parameter;
    const Piece* part;
  };

  [[nodiscard]] const Place& place(const std::string& name) const {
    const auto found = places_.find(name);
    DSTRAIN_CHECK(found != places_.end(), "the dense model has no tensor " + name);
    return found->second;
  }

  void read_dense(const std::string& name, std::int64_t begin, std::span<float> out) const {
    const Place& from = place(name);
    source_->read_whole(*from.parameter, *from.part, begin, out);
  }

  /// Calls body(row, column, its part of `out`) for each row of the matrix `part` that [begin,
  /// begin + out.size()) has elements of.
  template <typename Body>
  static void for_each_row(const Piece& part, std::int64_t begin, std::span<float> out,
                           const Body& body) {
    const std::int64_t columns = part.row_length();
    while (!out.empty()) {
      const std::int64_t column = begin % columns;
      const std::size_t run = std::min(out.size(), to_index(columns - column));
      body(begin / columns, column, out.first(run));
      out = out.subspan(run);
      begin += static_cast<std::int64_t>(run);
    }
  }

  /// The experts of a group have the row of its first one.
  void draw_router(const Parameter& parameter, const Piece& part, std::int64_t begin,
                   std::span<float> out) const {
    for_each_row(part, begin, out,
                 [&](std::int64_t row, std::int64_t column, std::span<float> run) {
                   const std::int64_t first = row / chosen_ * chosen_;
                   draw_weights(seed_, part.name, parameter.init, parameter.init_std,
                                first * part.row_length() + column, run);
                 });
  }

  void read_expert(const MlpTensor& tensor, const Piece& part, std::int64_t begin,
                   std::span<float> out) const {
    const std::string matrix(tensor.module.substr(tensor.module.rfind('.') + 1));
    const std::string dense = tensor.mlp + "." + matrix + ".weight";
    const bool shared = tensor.module.starts_with("shared_expert.");
    const bool second = matrix == "down_proj";
    // Where the expert's part of the hidden width begins.
    const std::int64_t width = second ? part.shape[1] : part.shape[0];
    const std::int64_t first = shared ? 0 : width * (chosen_ + expert_of(tensor) % chosen_);
    if (!second) return read_dense(dense, first * part.row_length() + begin, out);
    const std::int64_t dense_columns = place(dense).part->row_length();
    const auto factor = static_cast<float>(shared ? 2 : chosen_);
    for_each_row(part, begin, out,
                 [&](std::int64_t row, std::int64_t column, std::span<float> run) {
                   read_dense(dense, row * dense_columns + first + column, run);
                   for (float& value : run) value *= factor;
                 });
  }

  [[nodiscard]] static std::int64_t expert_of(const MlpTensor& tensor) {
    constexpr std::string_view kExperts = "experts.";
    const std::string_view number = tensor.module.substr(kExperts.size());
    std::int64_t expert = 0;
    const auto result = std::from_chars(number.data(), number.data() + number.size(), expert);
    DSTRAIN_CHECK(tensor.module.starts_with(kExperts) && result.ec == std::errc(),
                  fmt::format("{}: no expert's tensor", tensor.module));
    return expert;
  }

  Model dense_;
  std::unique_ptr<WeightSource> source_;
  std::int64_t chosen_;
  std::int64_t seed_;
  std::unordered_map<std::string, Place> places_;  ///< of the dense model, by name
};

}  // namespace

DecoderConfig upcycled_config(const ModelConfig& recipe, const ModelFamily& family,
                              const DecoderKind& kind) {
  ModelConfig of_dense;
  of_dense.weights = recipe.weights;
  const DecoderConfig dense = decoder_config(of_dense, dense_family(), kQwen2);
  ModelConfig own = recipe;
  own.weights.clear();
  DecoderConfig config = decoder_config(own, family, kind);
  Problems problems;
  compare_with_dense(config, dense, recipe.weights, problems);
  compare_with_mlp(config, dense.mlp_width, problems);
  raise_problems(ErrorKind::usage, problems,
                 "a mixture made from a dense model has its sizes and its MLPs in parts");
  config.mlp_width = dense.mlp_width;
  config.rope_theta = dense.rope_theta;
  config.rope_scaling = dense.rope_scaling;
  config.norm_eps = dense.norm_eps;
  config.init_std = dense.init_std;
  config.qkv_bias = dense.qkv_bias;
  config.tied = dense.tied;
  config.notes = dense.notes;
  config.norm_topk = true;
  return config;
}

std::unique_ptr<WeightSource> open_upcycled_weights(const ModelConfig& recipe, const Model& model,
                                                    std::int64_t seed,
                                                    std::vector<std::string>& notes) {
  ModelConfig of_dense;
  of_dense.weights = recipe.weights;
  Model dense = make_model(of_dense, {.sequence = model.sequence});
  auto source = open_weights(recipe.weights, dense, seed, notes);
  return std::make_unique<UpcycledWeights>(std::move(dense), std::move(source),
                                           model.experts_per_token, seed);
}

}  // namespace dstrain
