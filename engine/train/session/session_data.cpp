#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/data/images/jpeg_units.h"
#include "engine/data/images/random_images.h"
#include "engine/data/mixed_sets.h"
#include "engine/data/text_dataset.h"
#include "engine/models/trainable.h"
#include "engine/recipe/best_metric.h"
#include "engine/recipe/choices.h"
#include "engine/recipe/datasets.h"
#include "engine/train/session/session.h"

/// What data a session opens, and the model that fits them.
namespace dstrain {
namespace {

constexpr int kUsualImageSize = 224;

bool has(const std::vector<Augmentation>& list, Augmentation wanted) {
  return std::find(list.begin(), list.end(), wanted) != list.end();
}

/// "images: shorter side to 256 pixels (bilinear), the middle 224; (value x 0.0039 - [0.5]) / ...".
std::string describe_images(const DataConfig& data, const ImageShape& stored, int image_size) {
  std::string text = "images: ";
  if (has(data.augment, Augmentation::random_resized_crop)) {
    text += fmt::format("in training a random part of {:.3g} to {:.3g} of the area ({}), else ",
                        data.crop_scale[0], data.crop_scale[1], spelling(data.interpolation));
  }
  if (any_reads(data, "data.resize")) {
    text += fmt::format("{} to {} pixels ({}), ",
                        data.resize == Fit::stretch ? "both sides" : "shorter side", stored.height,
                        spelling(data.interpolation));
  }
  if (jpeg_lanes(data) > 0) text += "in training by the GPU's JPEG units, ";
  return text + fmt::format("{} pixels for the model; (value x {:.6g} - [{:.6g}]) / [{:.6g}]",
                            image_size, data.normalize.scale, fmt::join(data.normalize.mean, ", "),
                            fmt::join(data.normalize.deviation, ", "));
}

/// A run that does not needs no test split: data.test_share may be 0.
bool evaluates(const Recipe& recipe) { return !recipe.run.evaluate.is_never(); }

}  // namespace

void Session::open_image_data(const Splits& splits, ProgressSink* progress) {
  // The model may take its classes from the data, the data its image size from the model.
  const int first_size = recipe_.model.image_size > 0 ? recipe_.model.image_size : kUsualImageSize;
  const RandomKind kind = random_kind(recipe_);
  const auto open = [&](Split split, int size) {
    const std::int64_t seed = recipe_.run.seed;
    return std::shared_ptr<ImageDataset>(
        recipe_.data.name == DatasetName::random
            ? open_random_images(recipe_.data, split, size, seed, kind)
            : open_images(recipe_.data, split, size, seed, progress));
  };
  auto train = open(Split::train, first_size);
  model_ = make_trainable_model(recipe_, {.classes = train->classes(),
                                          .sequence = 0,
                                          .splits = splits,
                                          .class_names = train->class_names()});
  if (model_.image_size != first_size) train = open(Split::train, model_.image_size);
  if (train->shape().channels != model_.channels) {
    throw Error(ErrorKind::usage,
                fmt::format("model.channels: {} does not fit the data, whose images have {}",
                            model_.channels, train->shape().channels),
                fmt::format("use model.channels: {}", train->shape().channels));
  }
  if (const int lanes = jpeg_lanes(recipe_.data); lanes > 0)
    train->decode_by(JpegUnits::open(device_.device, lanes));
  notes_.push_back(describe_images(recipe_.data, train->shape(), model_.image_size));
  train_ = std::move(train);
  if (!evaluates(recipe_)) return;
  if (mixture() == nullptr) return tests_.push_back(open(Split::test, model_.image_size));
  for (auto& test : each_set(recipe_.data, progress, [&](const DataConfig&one, ProgressSink*own) {
         return open_images(one, Split::test, model_.image_size, recipe_.run.seed, own);
       }))
    tests_.push_back(std::move(test));
}

void Session::open_text_data(const Splits& splits, ProgressSink* progress) {
  model_ = make_trainable_model(
      recipe_, {.classes = 0, .sequence = recipe_.data.sequence, .splits = splits});
  const auto open = [&](const DataConfig& data, Split split, ProgressSink* sink) {
    return open_text(data, split, recipe_.model.weights, model_.vocab_size, recipe_.run.seed, sink);
  };
  train_ = open(recipe_.data, Split::train, progress);
  if (!evaluates(recipe_)) return;
  for (auto& test : each_set(recipe_.data, progress, [&](const DataConfig&one, ProgressSink*own) {
         return open(one, Split::test, own);
       }))
    tests_.push_back(std::move(test));
  if (recipe_.run.generate == 0) return;
  // What the test split holds has just been said.
  prompts_ = test_questions(recipe_.data, recipe_.model.weights, recipe_.run.generate, nullptr);
  if (auto note = unread_answers(prompts_); !note.empty()) notes_.push_back(std::move(note));
  if (auto note = keep_answerable(prompts_, model_.sequence, recipe_.run.generate_tokens);
      !note.empty())
    notes_.push_back(std::move(note));
  if (prompts_.empty() && is_of_answers(recipe_.run.best.metric))
    throw Error(
        ErrorKind::usage,
        fmt::format("run.best.metric: {}, but no prompt of the test split leaves room for an "
                    "answer in data.sequence ({})",
                    spelling(recipe_.run.best.metric), model_.sequence),
        "use a longer data.sequence, or run.best.metric loss");
  if (prompts_.empty()) return;
  tokenizer_ = Tokenizer::open(recipe_.data.tokenizer.empty() ? recipe_.model.weights
                                                              : recipe_.data.tokenizer);
}

FeederOptions Session::feeder_options(bool training) const {
  FeederOptions options =
      image_feeder_options(recipe_, model_.channels, model_.image_size, device_.device, training);
  options.buffers = strategy_->training.batches().size();
  options.beside_copies = streams_states(strategy_->training);
  return options;
}

Zigzag Session::own_tokens() const {
  const AxisPart& part = model_.splits.sequence;
  return {.ranks = part.count, .rank = part.index};
}

}  // namespace dstrain
