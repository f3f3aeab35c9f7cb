#include "engine/bench/zero_sentences.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/report/words.h"

namespace dstrain::bench {
namespace {

constexpr double kConstantPercent = 2;  ///< memory that differs by less is called constant

/// Which figure of memory a sentence goes by: that which all cells have.
struct MemoryKind {
  const char* name;
  report::FigureKey figure;
  double scale = 1;

  [[nodiscard]] double mib(const CaseResult& cell) const { return cell.value(figure) * scale; }
};
constexpr MemoryKind kMemoryKinds[] = {
    {"peak GPU memory", "gpu_added_peak"},
    {"memory allocated by dstrain", "memory_peak", kPerMib},
    {"planned memory (none was measured)", "device_planned", kPerMib},
};

CaseList those_that_ran(CaseList cases) {
  std::erase_if(cases, [](const CaseResult* one) { return !one->ran(); });
  return cases;
}

/// Nothing where no kind is known of all.
const MemoryKind* memory_kind(const CaseList& cells) {
  for (const MemoryKind& kind : kMemoryKinds) {
    if (std::ranges::all_of(cells,
                            [&](const CaseResult* c) { return std::isfinite(kind.mib(*c)); }))
      return cells.empty() ? nullptr : &kind;
  }
  return nullptr;
}

std::string mib_words(double mib) { return fmt::format("{:.0f} MiB", mib); }

/// "12.5 % less", "0.3 % more".
std::string change_words(double percent, const char* less, const char* more) {
  return fmt::format("{:.1f} % {}", std::abs(percent), percent <= 0 ? less : more);
}

struct Extremes {
  const CaseResult* min = nullptr;
  const CaseResult* max = nullptr;
};
/// Cells where the figure is not known are passed over.
template <class Of>
Extremes extremes(const CaseList& cells, const Of& figure) {
  Extremes found;
  for (const CaseResult* cell : cells) {
    const double value = figure(*cell);
    if (!std::isfinite(value)) continue;
    if (found.min == nullptr || value < figure(*found.min)) found.min = cell;
    if (found.max == nullptr || value > figure(*found.max)) found.max = cell;
  }
  return found;
}

/// "memory was planned -0.3 % to +1.2 % beside the measured".
template <class Of>
std::string planned_words(const CaseList& cells, const char* what, const Of& percent) {
  const Extremes found = extremes(cells, percent);
  if (found.min == nullptr) return {};
  return fmt::format("{} was planned {:+.1f} % to {:+.1f} % beside the measured.", what,
                     percent(*found.min), percent(*found.max));
}

void add_planned(std::vector<std::string>& to, const CaseList& cells) {
  const std::string memory = planned_words(cells, "GPU memory", [](const CaseResult& c) {
    return change_percent(c.value("gpu_added_peak"), c.value("device_planned") * kPerMib);
  });
  const std::string step = planned_words(cells, "The step", [](const CaseResult& c) {
    return change_percent(c.value("step_s"), c.value("planned_step_s"));
  });
  for (const std::string& text : {memory, step}) {
    if (!text.empty()) to.push_back(text);
  }
}

bool all_zero(const CaseList& cells, const MemoryKind& kind) {
  return std::ranges::all_of(cells, [&](const CaseResult* c) { return kind.mib(*c) == 0; });
}

}  // namespace

std::vector<std::string> stage_sentences(const CaseList& cells) {
  std::vector<std::string> sentences;
  const CaseList ran = those_that_ran(cells);
  if (ran.empty()) return {"No cell has run."};
  const MemoryKind* kind = memory_kind(ran);
  if (kind != nullptr && !all_zero(ran, *kind)) {
    const auto mib = [&](const CaseResult& c) { return kind->mib(c); };
    const Extremes all = extremes(ran, mib);
    std::string text = fmt::format("Least {}: {} with {}", kind->name, way_words(*all.min),
                                   mib_words(mib(*all.min)));
    const auto reference =
        std::ranges::find(ran, ZeroWay{}, [](const CaseResult* c) { return c->which.way; });
    if (reference != ran.end() && *reference != all.min) {
      text += fmt::format(
          ", {} than stage 0",
          change_words(change_percent(mib(**reference), mib(*all.min)), "less", "more"));
    }
    sentences.push_back(text + ".");
    CaseList resident;
    for (const CaseResult* cell : ran) {
      if (cell->which.way.offload == ZeroOffload::none) resident.push_back(cell);
    }
    if (const Extremes found = extremes(resident, mib); found.min && found.min != all.min) {
      sentences.push_back(fmt::format("Without offload: {} with {}.", way_words(*found.min),
                                      mib_words(mib(*found.min))));
    }
  }
  const auto rate = [](const CaseResult& c) { return c.value("samples_per_s"); };
  if (const Extremes found = extremes(ran, rate); found.max) {
    sentences.push_back(fmt::format("Fastest: {} with {} samples/s; slowest: {} with {}.",
                                    way_words(*found.max), report::rate_words(rate(*found.max)),
                                    way_words(*found.min), report::rate_words(rate(*found.min))));
  }
  const auto loss = [](const CaseResult& c) { return c.value("final_loss"); };
  if (const Extremes found = extremes(ran, loss); found.min && ran.size() > 1) {
    const double spread = loss(*found.max) - loss(*found.min);
    sentences.push_back(spread == 0
                            ? fmt::format("Train loss: the same in all {} cells.", ran.size())
                            : fmt::format("Train loss: {} to {}, {:.2g} apart.",
                                          report::number_words(loss(*found.min)),
                                          report::number_words(loss(*found.max)), spread));
  }
  add_planned(sentences, ran);
  return sentences;
}

std::vector<std::string> offload_sentences(const std::vector<CasePair>& pairs) {
  std::vector<std::string> sentences;
  struct Saving {
    const CaseResult* with;
    double percent;
  };
  std::vector<Saving> saved, cost;
  for (const auto& [without, with] : pairs) {
    if (!with->ran() || !without->ran()) continue;
    const double less =
        savings_percent(without->value("gpu_added_peak"), with->value("gpu_added_peak"));
    if (std::isfinite(less)) saved.push_back({with, less});
    const double longer =
        change_percent(without->value("train_seconds"), with->value("train_seconds"));
    if (std::isfinite(longer)) cost.push_back({with, longer});
  }
  if (saved.empty()) {
    sentences.emplace_back("Savings of GPU memory were not measured.");
  } else {
    const Saving& max = *std::ranges::max_element(saved, {}, &Saving::percent);
    sentences.push_back(fmt::format("Offload saves most under {}: {:.1f} % of peak GPU memory.",
                                    way_words(*max.with), max.percent));
  }
  if (!cost.empty()) {
    const auto [low, high] = std::ranges::minmax_element(cost, {}, &Saving::percent);
    sentences.push_back(
        fmt::format("Offload changes the train runtime by {:+.1f} % ({}) to {:+.1f} % ({}).",
                    low->percent, way_words(*low->with), high->percent, way_words(*high->with)));
  }
  return sentences;
}

std::vector<std::string> pinned_sentences(const std::vector<CasePair>& pairs) {
  std::vector<std::string> sentences;
  for (const auto& [pinned, pageable] : pairs) {
    const double fast = pinned->value("train_seconds"), slow = pageable->value("train_seconds");
    if (!std::isfinite(fast) || !std::isfinite(slow)) continue;
    const std::string words = way_words(*pinned);
    sentences.push_back(
        fmt::format("{}: pinned memory trains in {:.2f} s, pageable in {:.2f} s: pinned takes {}.",
                    words.substr(0, words.find(',')), fast, slow,
                    change_words(change_percent(slow, fast), "less", "more")));
  }
  return sentences;
}

std::vector<std::string> scaling_sentences(const CaseList& cells) {
  std::vector<std::string> sentences;
  const CaseList ran = those_that_ran(cells);
  if (ran.size() < 2) return {"Fewer than two numbers of ranks have run: nothing to compare."};
  const CaseResult& first = *ran.front();
  const CaseResult& last = *ran.back();
  const std::string range = fmt::format("from {} to {} ranks", first.which.ranks, last.which.ranks);
  const MemoryKind* kind = memory_kind(ran);
  if (kind != nullptr && !all_zero(ran, *kind)) {
    const auto mib = [&](const CaseResult& c) { return kind->mib(c); };
    const Extremes found = extremes(ran, mib);
    const double spread = change_percent(mib(*found.min), mib(*found.max));
    const char* verdict = spread < kConstantPercent ? "stayed constant"
                          : mib(last) > mib(first)  ? "grew"
                                                    : "changed";
    std::string name = kind->name;
    name.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(name.front())));
    sentences.push_back(fmt::format("{} {} {}: {} to {} ({:.1f} % apart).", name, verdict, range,
                                    mib_words(mib(*found.min)), mib_words(mib(*found.max)),
                                    spread));
  }
  if (std::isfinite(last.value("efficiency"))) {
    sentences.push_back(fmt::format("{} ranks keep {:.1f} % of the rate a rank had on {}.",
                                    last.which.ranks, last.value("efficiency") * 100,
                                    first.which.ranks));
  }
  add_planned(sentences, ran);
  return sentences;
}

std::vector<std::string> one_rank_sentences(const CaseList& cells) {
  std::vector<std::string> sentences = {
      "With one rank nothing is divided: all stages are the same, and one stands for them."};
  add_planned(sentences, those_that_ran(cells));
  return sentences;
}

}  // namespace dstrain::bench
