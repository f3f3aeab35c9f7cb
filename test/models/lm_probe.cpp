#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "engine/base/error.h"
#include "engine/kernels/optimizer/optimizer.h"
#include "engine/models/language_head.h"
#include "engine/models/weights.h"
#include "test/models/bind.h"
#include "test/models/run_blocks.h"
#include "test/models/serve.h"

/// lm_probe WEIGHTS INPUT OUTPUT EXPORT DTYPE: loads the folder WEIGHTS of a language model and
/// writes to OUTPUT, of the first of INPUT's batches: logits, loss, next tokens after `last`, and
/// every gradient; then takes an AdamW step on each batch and writes the losses. INPUT has, all as
/// fp32: tokens [N, B, T], labels and weights [N, B * T], last [B], and lr, beta1, beta2, eps,
/// weight_decay (of matrices) as optimizer [5], and perhaps lengths [N, B] without padding. Before
/// the steps the weights go to folder EXPORT. DTYPE is that of the computation, fp32 or bf16; steps
/// are taken in fp32 only. With BALANCE and Z, coefficients of losses of the routers that are means
/// over samples and layers, the gradients are those of the mean loss and of these, and OUTPUT has
/// the balance loss, too.
namespace dstrain {
namespace {

using Values = std::map<std::string, std::vector<float>>;

at::Tensor read_tensor(const SafetensorsFile& file, const std::string& name) {
  at::Tensor tensor = at::empty(file.entries().at(name).shape, at::kFloat);
  file.read(name, 0, test::floats(tensor));
  return tensor;
}

class Probe {
 public:
  Probe(const std::filesystem::path& weights, const std::filesystem::path& input,
        at::ScalarType dtype, const ExpertsConfig& experts)
      : file_(input) {
    ModelConfig config;
    config.weights = weights.string();
    tokens_ = read_tensor(file_, "tokens").to(at::kLong);
    labels_ = read_tensor(file_, "labels").to(at::kLong);
    weights_ = read_tensor(file_, "weights");
    if (file_.entries().contains("lengths")) lengths_ = read_tensor(file_, "lengths").to(at::kInt);
    model_ =
        make_model(config, {.sequence = static_cast<int>(tokens_.size(2)), .experts = experts});
    std::vector<std::string> notes;
    test::bind_parameters(model_, *open_weights(weights, model_, 0, notes));
    for (const std::string& note : notes) fmt::print("note: {}\n", note);
    for (Parameter* parameter : all_parameters(model_)) {
      masters_.push_back(parameter->value);
      parameter->value = parameter->value.to(dtype);
    }
  }

  Model& model() { return model_; }
  [[nodiscard]] std::int64_t num_batches() const { return tokens_.size(0); }
  [[nodiscard]] at::Tensor last() const { return read_tensor(file_, "last").to(at::kLong); }

  /// Logits of the first batch.
  at::Tensor logits() {
    const at::NoGradGuard no_gradients;
    const Tensors state = before_head(batch(0));
    return dynamic_cast<LanguageHead&>(*model_.blocks.back()).logits(state).to(at::kFloat);
  }

  /// Most likely next tokens after `positions` of the first batch.
  at::Tensor next(const at::Tensor& positions) {
    const at::NoGradGuard no_gradients;
    const Tensors state = before_head(batch(0));
    const at::Tensor tokens = positions.clone();
    (void)model_.blocks.back()->forward(state, batch(0), {.next_tokens = tokens});
    return tokens;
  }

  /// Mean loss without gradients.
  float evaluate(std::int64_t index) {
    const at::NoGradGuard no_gradients;
    const at::Tensor totals = at::zeros({kNumTotals});
    const Batch one = batch(index);
    const at::Tensor loss =
        model_.blocks.back()->forward(before_head(one), one, {.totals = totals}).at(0);
    DSTRAIN_CHECK(loss.item<float>() == totals[0].item<float>(), "the loss is not its total");
    return (totals[0] / totals[3]).item<float>();
  }

  /// Mean loss; adds its gradients.
  float backward(std::int64_t index) {
    const Batch one = batch(index);
    const at::Tensor totals = at::zeros({kNumTotals});
    const at::Tensor factor = one.weights.sum().reciprocal();
    const at::Tensor per_sample = at::full({}, 1.0 / static_cast<double>(one.tokens.size(0)));
    (void)test::run_model(model_.blocks, one, {.totals = totals, .sample_seed = per_sample},
                          factor);
    balance_ = (totals[kBalanceTotal] * per_sample).item<float>();
    return (totals[0] / totals[3]).item<float>();
  }

  /// Mean over samples and layers, of the last backward.
  [[nodiscard]] float balance() const { return balance_; }

  /// Loss of each batch, with an optimizer step after it.
  std::vector<float> train() {
    const at::Tensor settings = read_tensor(file_, "optimizer");
    const auto setting = [&](std::int64_t i) { return settings[i].item<double>(); };
    at::Tensor control = at::zeros({optimizer::kControlSize});
    control[optimizer::kLossScale] = 1;
    Tensors first_moments, second_moments;
    for (const at::Tensor& master : masters_) {
      first_moments.push_back(at::zeros_like(master));
      second_moments.push_back(at::zeros_like(master));
    }
    const std::vector<Parameter*> parameters = all_parameters(model_);
    std::vector<float> losses;
    for (std::int64_t i = 0; i < num_batches(); ++i) {
      for (Parameter* parameter : parameters) parameter->gradient.zero_();
      losses.push_back(backward(i));
      const at::Tensor squares = at::zeros({1});
      for (Parameter* parameter : parameters)
        optimizer::add_squares(parameter->gradient.flatten(), 1, squares);
      optimizer::finish_gradients(control, squares, {.beta1 = setting(1), .beta2 = setting(2)});
      for (std::size_t p = 0; p < parameters.size(); ++p) {
        const bool matrix = parameters[p]->shape.size() > 1;
        optimizer::update({.master = masters_[p].flatten(),
                           .moments = {first_moments[p].flatten(), second_moments[p].flatten()},
                           .gradient = parameters[p]->gradient.flatten(),
                           .compute = {},
                           .rule = optimizer::AdamW{.lr = setting(0),
                                                    .beta1 = setting(1),
                                                    .beta2 = setting(2),
                                                    .eps = setting(3),
                                                    .weight_decay = matrix ? setting(4) : 0}},
                          control);
      }
    }
    return losses;
  }

 private:
  [[nodiscard]] Batch batch(std::int64_t index) const {
    return {.tokens = tokens_[index],
            .labels = labels_[index],
            .weights = weights_[index].contiguous(),
            .lengths = lengths_.defined() ? lengths_[index].contiguous() : at::Tensor()};
  }

  Tensors before_head(const Batch& batch) {
    Tensors state;
    for (std::size_t i = 0; i + 1 < model_.blocks.size(); ++i)
      state = model_.blocks[i]->forward(state, batch, {});
    return state;
  }

  SafetensorsFile file_;
  at::Tensor tokens_, labels_, weights_, lengths_;
  Model model_;
  Tensors masters_;  ///< fp32 weights; in fp32 the parameters' own
  float balance_ = 0;
};

/// Collects tensors and writes them.
class Output {
 public:
  void add(const std::string& name, const at::Tensor& tensor) {
    kept_.push_back(tensor.to(at::kFloat).contiguous());
    list_.push_back({.name = name,
                     .shape = tensor.sizes().vec(),
                     .dtype = DType::f32,
                     .values = test::floats(kept_.back())});
  }
  void write(const std::filesystem::path& path) { write_safetensors(path, list_, {}); }

 private:
  std::vector<at::Tensor> kept_;
  std::vector<SafetensorsTensor> list_;
};

void probe(const std::filesystem::path& weights, const std::filesystem::path& input,
           const std::filesystem::path& output_path, const std::filesystem::path& exported,
           const std::string& dtype, const ExpertsConfig& experts) {
  Probe probe(weights, input, dtype == "bf16" ? at::kBFloat16 : at::kFloat, experts);
  Output output;
  output.add("logits", probe.logits());
  output.add("next", probe.next(probe.last()));
  output.add("evaluated", at::full({}, probe.evaluate(0)));
  output.add("loss", at::full({}, probe.backward(0)));
  output.add("balance", at::full({}, probe.balance()));
  for (const Parameter* parameter : all_parameters(probe.model())) {
    std::int64_t row = 0;
    for (const Piece& part : parameter->parts) {
      output.add("gradient/" + part.name,
                 parameter->gradient.narrow(0, row, part.shape[0]).clone());
      row += part.shape[0];
    }
  }
  if (dtype == "fp32") {
    const Values values = test::part_values(probe.model(), &Parameter::value);
    export_weights(exported, probe.model(), test::reader_of(values), {.shard_bytes = 20000});
    output.add("losses", at::tensor(probe.train()));
  }
  output.write(output_path);
}

}  // namespace
}  // namespace dstrain

static int answer(int argc, char** argv) {
  if (argc != 6 && argc != 8) {
    std::fputs("usage: lm_probe WEIGHTS INPUT OUTPUT EXPORT fp32|bf16 [BALANCE Z]\n", stderr);
    return 64;
  }
  try {
    dstrain::ExpertsConfig experts{.balance_loss = 0};
    if (argc == 8) {
      experts.balance_loss = std::stod(argv[6]);
      experts.z_loss = std::stod(argv[7]);
    }
    dstrain::probe(argv[1], argv[2], argv[3], argv[4], argv[5], experts);
  } catch (const dstrain::Error& error) {
    fmt::print(stderr, "error: {}\nhint: {}\n", error.what(), error.hint());
    return dstrain::exit_code(error.kind());
  }
  return 0;
}

int main(int argc, char** argv) { return dstrain::test::serve(argc, argv, &answer); }
