#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/recipe/diagnostics.h"
#include "engine/recipe/reader.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// What a rule sees and where it reports.
class RuleContext {
 public:
  RuleContext(const YamlReader& reader, Diagnostics& diagnostics)
      : reader_(reader), diagnostics_(diagnostics) {}

  [[nodiscard]] bool given(std::string_view path) const { return reader_.given(path) != nullptr; }
  void error(std::string_view path, std::string message, std::string hint) {
    diagnostics_.error(reader_.place(path), path, std::move(message), std::move(hint));
  }
  void warning(std::string_view path, std::string message, std::string hint) {
    diagnostics_.warning(reader_.place(path), path, std::move(message), std::move(hint));
  }

 private:
  const YamlReader& reader_;
  Diagnostics& diagnostics_;
};

/// One rule and the fields without which it has nothing to say.
struct Rule {
  void (*check)(const Recipe&, RuleContext&);
  std::vector<std::string_view> reads;
};

/// The schedule falls towards optimizer.final_lr_ratio.
[[nodiscard]] inline bool decays(Schedule schedule) {
  return schedule == Schedule::linear || schedule == Schedule::cosine;
}

/// Those of lengths, phases, learning rates, loss scales and averages.
[[nodiscard]] std::span<const Rule> training_rules();

/// Those of number formats, but loss scales.
[[nodiscard]] std::span<const Rule> precision_rules();

/// Those of image data.
[[nodiscard]] std::span<const Rule> image_rules();

/// Those of chats and pairs of answers.
[[nodiscard]] std::span<const Rule> text_rules();

}  // namespace dstrain
