#include "engine/draft/training_rates.h"

#include <fmt/format.h>

#include <string_view>

namespace dstrain::draft {
namespace {

constexpr std::int64_t kSmall = 1'000'000'000;  ///< parameters that bear a larger rate
constexpr std::int64_t kLarge = 5'000'000'000;

/// How the recipes of the tree train a convolutional family.
struct ConvolutionalRate {
  std::string_view family;
  std::string_view optimizer;
  double from_random, from_weights;  ///< lr at `batch` samples
  int batch;                         ///< 0: lr holds for any
  double weight_decay;
};
constexpr ConvolutionalRate kConvolutional[] = {
    {"basic_cnn", "adamw", 1e-3, 1e-4, 0, 0.05},
    {"resnet", "sgd", 0.2, 0.02, 512, 1e-4},
    {"vgg", "sgd", 0.01, 1e-3, 64, 5e-4},
    {"mobilenet_v2", "sgd", 0.1, 0.01, 256, 4e-5},
    {"mobilenet_v3_large", "rmsprop", 0.016, 1.6e-3, 256, 1e-5},
    {"mobilenet_v3_small", "rmsprop", 0.016, 1.6e-3, 256, 1e-5},
    {"efficientnet", "rmsprop", 0.016, 1.6e-3, 256, 1e-5},
    {"convnext", "adamw", 5e-4, 5e-5, 0, 0.05},
    {"cnn_lstm", "sgd", 0.02, 2e-3, 64, 4e-5},
};

const ConvolutionalRate& rate_of(const ModelFamily& family) {
  for (const ConvolutionalRate& one : kConvolutional) {
    if (one.family == family.name) return one;
  }
  return kConvolutional[0];
}

std::string number(double value) { return fmt::format("{:g}", value); }
/// "2.0e-4", as the recipes have it.
std::string rate(double value) {
  std::string text = fmt::format("{:.1e}", value);
  if (const auto zero = text.find("e-0"); zero != std::string::npos) text.erase(zero + 2, 1);
  return value < 0.01 ? text : number(value);
}

std::vector<DraftLine> convolutional_lines(const ModelFacts& model, int global) {
  const ConvolutionalRate& row = rate_of(*model.family);
  const bool random = model.weights.empty();
  const double lr = random ? row.from_random : row.from_weights;
  const double scale = row.batch == 0 ? 1 : static_cast<double>(global) / row.batch;
  const std::string from = random ? "random weights" : "trained weights";
  std::vector<DraftLine> lines = {
      {"optimizer.name", std::string(row.optimizer),
       fmt::format("what {} is usually trained by", model.family->title)},
      {"optimizer.lr", rate(lr * scale),
       row.batch == 0 ? fmt::format("usual from {}", from)
                      : fmt::format("{} for {} samples, usual from {}, times {}", rate(lr),
                                    row.batch, from, number(scale))},
      {"optimizer.weight_decay", rate(row.weight_decay), "usual for this family"}};
  if (row.optimizer == "sgd") lines.push_back({"optimizer.momentum", "0.9", "usual for sgd"});
  if (row.optimizer == "rmsprop") {
    for (const auto& [key, value] :
         {std::pair{"rmsprop", "tensorflow"}, {"alpha", "0.9"}, {"eps", "1.0e-3"}})
      lines.push_back({fmt::format("optimizer.{}", key), value,
                       fmt::format("as {} was trained", model.family->title)});
  }
  return lines;
}

}  // namespace

std::vector<DraftLine> optimizer_lines(const Facts& facts, const Choices& choices, int global) {
  const ModelFacts& model = facts.model;
  if (model.family->by_name) return convolutional_lines(model, global);
  std::vector<DraftLine> lines = {{"optimizer.name", "adamw", "usual for transformers"}};
  const auto lr = [&](double value, const std::string& reason) {
    lines.push_back({"optimizer.lr", rate(value), reason});
  };
  const auto decay = [&](double value, const char* reason) {
    lines.push_back({"optimizer.weight_decay", number(value), reason});
  };
  if (!model.takes_text()) {
    if (choices.adapters) {
      lr(3e-3, "adapters of vision transformers bear a large rate");
      decay(0.01, "usual");
    } else if (model.weights.empty()) {
      lr(1e-4, "usual from random weights");
      decay(0.05, "usual from random weights");
    } else {
      lr(5e-5, "small, as all weights are trained ones");
      decay(0.01, "usual from trained weights");
    }
    return lines;
  }
  if (facts.data.pairs) {
    lr(choices.adapters ? 2e-5 : 1e-6, "small, so that the model stays near to what it was");
    decay(0, "usual for pairs of answers");
    return lines;
  }
  if (choices.adapters) {
    const bool large = choices.parameters > kLarge;
    lr(large ? 1e-4 : 2e-4, fmt::format("adapters take about ten times the rate of full training{}",
                                        large ? "; large models the smaller one" : ""));
    decay(0, "adapters start at no change");
    return lines;
  }
  if (model.weights.empty()) {
    lr(3e-4, "usual from random weights");
  } else {
    const bool small = choices.parameters > 0 && choices.parameters < kSmall;
    lr(small ? 2e-5 : 1e-5, small ? "all weights, of a small model" : "all weights");
  }
  decay(0.01, "usual");
  lines.push_back({"optimizer.decay_vectors", "false", "norms and biases are not decayed"});
  return lines;
}

}  // namespace dstrain::draft
