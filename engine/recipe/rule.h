#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/recipe/datasets.h"
#include "engine/recipe/diagnostics.h"
#include "engine/recipe/reader.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// What a rule sees and where it reports.
class RuleContext {
 public:
  RuleContext(const YamlReader& reader, Diagnostics& diagnostics)
      : reader_(reader), diagnostics_(diagnostics) {}

  /// Reads and reports keys of a data set at member `member` of data.mixture.
  [[nodiscard]] RuleContext of_member(std::size_t member) const {
    RuleContext own = *this;
    own.member_ = member;
    return own;
  }
  [[nodiscard]] bool given(std::string_view path) const {
    return reader_.given(own(path)) != nullptr;
  }
  [[nodiscard]] bool usable(std::string_view path) const { return reader_.usable(own(path)); }
  void error(std::string_view path, std::string message, std::string hint) {
    diagnostics_.error(reader_.place(own(path)), own(path), std::move(message), std::move(hint));
  }
  void warning(std::string_view path, std::string message, std::string hint) {
    diagnostics_.warning(reader_.place(own(path)), own(path), std::move(message), std::move(hint));
  }

 private:
  [[nodiscard]] std::string own(std::string_view path) const {
    return member_ && is_member_key(path) ? member_path(*member_, path) : std::string(path);
  }

  std::optional<std::size_t> member_;
  const YamlReader& reader_;
  Diagnostics& diagnostics_;
};

/// One rule and the fields without which it has nothing to say.
struct Rule {
  void (*check)(const Recipe&, RuleContext&);
  std::vector<std::string_view> reads;
  bool each_set = false;  ///< looks at one data set: of a mixture at each
};

/// The schedule falls towards optimizer.final_lr_ratio.
[[nodiscard]] inline bool decays(Schedule schedule) {
  return schedule == Schedule::linear || schedule == Schedule::cosine;
}

/// Those of lengths, phases, learning rates, loss scales and averages.
[[nodiscard]] std::span<const Rule> training_rules();

/// Those of number formats, but loss scales.
[[nodiscard]] std::span<const Rule> precision_rules();

/// Something rests in a file.
[[nodiscard]] bool places_files(const OffloadConfig& offload);
/// Those of states, parameters and activations that rest on the host.
[[nodiscard]] std::span<const Rule> offload_rules();

/// Those of image data.
[[nodiscard]] std::span<const Rule> image_rules();

/// Those of chats and pairs of answers.
[[nodiscard]] std::span<const Rule> text_rules();

/// Those of mixtures of data sets.
[[nodiscard]] std::span<const Rule> mixture_rules();

}  // namespace dstrain
