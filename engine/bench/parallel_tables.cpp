#include "engine/bench/parallel_tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "engine/report/words.h"

namespace dstrain::bench {
namespace {

using report::Cell;

Cell milliseconds(double seconds) { return number_cell(seconds * 1e3, 2); }
Cell percents(double share) { return number_cell(share * 100, 1); }
Cell gibibytes(double bytes) { return number_cell(bytes * kPerGib, 3); }
Cell rate(double value) {
  return {.text = report::rate_words(value), .figure = {}, .value = value};
}

constexpr Column milliseconds(const char* title, report::FigureKey figure) {
  return {title, figure, 2, 1e3};
}
constexpr Column percents(const char* title, report::FigureKey figure) {
  return {title, figure, 1, 100};
}

Cell word(const std::string& text) { return text_cell(text.empty() ? "-" : text); }

/// Change of `value` beside `base` in per cent.
Cell change(double value, double base) { return number_cell((value / base - 1) * 100, 1); }

std::string scaling_words(const Case& one) {
  if (one.search.row > 0)
    return fmt::format("--auto {}{}", one.search.row, one.search.is_default ? " (default)" : "");
  return one.weak && one.strong ? "weak, strong" : one.weak ? "weak" : "strong";
}

/// Cells that say which case a row is about.
std::vector<Cell> names(const CaseResult& result) {
  return {text_cell(result.recipe), text_cell(fmt::to_string(result.which.ranks)),
          text_cell(scaling_words(result.which)), word(result.layout)};
}
const std::vector<std::string> kNames = {"Recipe", "Ranks", "Scaling", "Layout"};

report::Table with_header(std::vector<std::string> more) {
  report::Table table{.header = kNames, .rows = {}};
  table.header.insert(table.header.end(), more.begin(), more.end());
  return table;
}

void add_row(report::Table& table, const CaseResult& result, std::vector<Cell> more) {
  std::vector<Cell> row = names(result);
  row.insert(row.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  table.rows.push_back(std::move(row));
}

Cell batch_cell(const CaseResult& result) {
  const double micro = result.value("micro");
  if (!std::isfinite(micro)) return text_cell("-");
  return text_cell(fmt::format("{:.0f} x {:.0f}", micro, result.value("micro_batches")));
}

BenchTable speed_table(const std::vector<CaseResult>& results) {
  BenchTable made{.file = "1-speed", .title = "Speed"};
  made.table = with_header({"Schedule", "Micro x", "Samples", "Rate/s/rank", "MFU %", "Step ms",
                            "planned", "Difference %", "Peak GiB", "planned"});
  for (const CaseResult& r : results) {
    const double step = r.value("step_s"), planned = r.value("planned_step_s");
    add_row(made.table, r,
            {word(r.schedule), batch_cell(r), text_cell(fmt::to_string(r.which.samples)),
             rate(r.value("rate_per_rank")), percents(r.value("mfu")), milliseconds(step),
             milliseconds(planned), change(step, planned), gibibytes(r.value("peak_bytes")),
             gibibytes(r.value("memory_planned"))});
  }
  return made;
}

BenchTable parts_table(const std::vector<CaseResult>& results) {
  static constexpr Column kParts[] = {milliseconds("Forward ms", "forward_s"),
                                      milliseconds("Backward ms", "backward_s"),
                                      milliseconds("Weight ms", "weight_s"),
                                      milliseconds("Optimizer ms", "optimizer_s"),
                                      milliseconds("in blocks", "exposed_blocks_s"),
                                      milliseconds("Gather ms", "exposed_gather_s"),
                                      milliseconds("Reduce ms", "exposed_reduce_s"),
                                      milliseconds("Stages ms", "exposed_stages_s"),
                                      milliseconds("Norm ms", "exposed_norm_s"),
                                      milliseconds("Input ms", "exposed_input_s"),
                                      percents("Bubble %", "bubble"),
                                      percents("simulated", "planned_bubble"),
                                      milliseconds("Exchanges ms", "exchange_s"),
                                      milliseconds("planned", "planned_exchange_s"),
                                      milliseconds("Contention ms", "contention_s")};
  BenchTable made{.file = "2-parts", .title = "Parts of a step"};
  made.table = with_header({});
  for (const Column& part : kParts) made.table.header.emplace_back(part.title);
  for (const CaseResult& r : results) {
    if (!r.ran()) continue;
    std::vector<Cell> row;
    for (const Column& part : kParts) row.push_back(part.cell(r));
    if (!(r.value("weight_s") > 0)) row[2] = text_cell("-");  // they do not come later
    add_row(made.table, r, std::move(row));
  }
  return made;
}

BenchTable stage_table(const std::vector<CaseResult>& results) {
  BenchTable made{.file = "3-stages", .title = "Stages"};
  made.table = with_header({"Stage", "Blocks of chunks", "Peak GiB", "planned", "Difference %",
                            "Bubble %", "simulated"});
  for (const CaseResult& r : results) {
    for (const StageFigures& stage : r.stages) {
      add_row(made.table, r,
              {text_cell(fmt::to_string(stage.stage)), word(stage.blocks), gibibytes(stage.peak),
               gibibytes(stage.planned), change(stage.peak, stage.planned), percents(stage.bubble),
               percents(stage.planned_bubble)});
    }
  }
  return made;
}

BenchTable collective_table(const std::vector<CaseResult>& results) {
  BenchTable made{.file = "4-collectives", .title = "Collectives of a step"};
  made.table =
      with_header({"Operation", "of", "Calls", "planned", "Bytes", "planned bytes", "Bus GB/s"});
  std::size_t equal = 0, all = 0;
  for (const CaseResult& r : results) {
    if (!r.ran()) continue;
    for (const CollectiveFigures& one : r.collectives) {
      add_row(made.table, r,
              {text_cell(one.operation), text_cell(one.purpose), number_cell(one.calls, 0),
               number_cell(one.planned_calls, 0), number_cell(one.bytes, 0),
               number_cell(one.planned_bytes, 0), number_cell(one.bus_rate / 1e9, 1)});
      ++all;
      if (one.bytes == one.planned_bytes) ++equal;
    }
  }
  if (all > 0)
    made.sentences.push_back(
        fmt::format("Counted bytes are the planned in {} of {} rows.", equal, all));
  return made;
}

BenchTable scaling_table(const std::vector<CaseResult>& results, const char* file,
                         const char* title, bool Case::*scaling, report::FigureKey efficiency) {
  BenchTable made{.file = file, .title = title};
  made.table = {.header = {"Recipe", "Ranks", "Layout", "Samples", "Rate/s", "Rate/s/rank",
                           "Efficiency %", "MFU %", "Bubble %"},
                .rows = {}};
  for (const CaseResult& r : results) {
    if (!(r.which.*scaling) || !r.ran()) continue;
    made.table.rows.push_back({text_cell(r.recipe), text_cell(fmt::to_string(r.which.ranks)),
                               text_cell(r.layout), text_cell(fmt::to_string(r.which.samples)),
                               rate(r.value("rate_per_rank") * r.which.ranks),
                               rate(r.value("rate_per_rank")), percents(r.value(efficiency)),
                               percents(r.value("mfu")), percents(r.value("bubble"))});
  }
  return made;
}

/// Rows of a search on one number of ranks and the recipes' own layouts, by predicted time.
using Search = CaseList;

/// As the search says; of a recipe's own layout as its plan does.
double predicted_s(const CaseResult& result) {
  return result.which.search.row > 0 ? result.which.search.step_s : result.value("planned_step_s");
}

std::vector<Search> searches(const std::vector<CaseResult>& results) {
  std::vector<Search> all;
  for (const CaseResult& r : results) {
    if (r.which.search.recipe < 0 || !std::isfinite(predicted_s(r))) continue;
    const auto same = [&](const Search& search) {
      return search.front()->which.search.recipe == r.which.search.recipe &&
             search.front()->which.ranks == r.which.ranks;
    };
    const auto found = std::ranges::find_if(all, same);
    if (found == all.end())
      all.push_back({&r});
    else
      found->push_back(&r);
  }
  for (Search& search : all)
    std::ranges::stable_sort(search, {}, [](const CaseResult* r) { return predicted_s(*r); });
  return all;
}

/// "row 2", "tiny_2d".
std::string row_words(const CaseResult& result) {
  return result.which.search.row > 0 ? fmt::format("row {}", result.which.search.row)
                                     : result.recipe;
}

/// "2 ranks: the measured order is the predicted one." or which rows have changed places.
std::string order_sentence(const Search& search) {
  constexpr double kEqual = 0.01;  // of a step
  std::vector<std::string> swaps;
  std::size_t ran = 0;
  bool close = false;
  for (std::size_t i = 0; i < search.size(); ++i) {
    if (!search[i]->ran()) continue;
    ++ran;
    for (std::size_t k = i + 1; k < search.size(); ++k) {
      const double gain = 1 - search[k]->value("step_s") / search[i]->value("step_s");
      if (!search[k]->ran() || !(gain > 0)) continue;
      close = close || gain < kEqual;
      if (gain < kEqual) continue;
      swaps.push_back(fmt::format("{} is {:.1f} % faster than {}", row_words(*search[k]),
                                  100 * gain, row_words(*search[i])));
    }
  }
  const std::string place = fmt::format("{} ranks: ", search.front()->which.ranks);
  if (ran < 2) return place + "fewer than two rows ran, so there is no order to compare.";
  if (swaps.empty())
    return fmt::format("{}the measured order is the predicted one{}.", place,
                       close ? ", but for differences below 1 %" : "");
  return fmt::format("{}the measured order differs: {}.", place, fmt::join(swaps, ", "));
}

BenchTable auto_table(const std::vector<CaseResult>& results) {
  BenchTable made{.file = "7-auto", .title = "Order of plan --auto"};
  made.table = {
      .header = {"Recipe", "Ranks", "Row", "Layout", "Schedule", "Micro x", "predicted ms",
                 "planned ms", "Step ms", "Difference %", "Measured place"},
      .rows = {}};
  for (const Search& search : searches(results)) {
    for (const CaseResult* r : search) {
      std::size_t place = 1;
      for (const CaseResult* other : search)
        place += other->value("step_s") < r->value("step_s") ? 1 : 0;
      made.table.rows.push_back(
          {text_cell(r->recipe), text_cell(fmt::to_string(r->which.ranks)),
           text_cell(r->which.search.row == 0     ? "recipe"
                     : r->which.search.is_default ? fmt::format("{} (default)", r->which.search.row)
                                                  : fmt::to_string(r->which.search.row)),
           word(r->layout), word(r->schedule), batch_cell(*r), milliseconds(predicted_s(*r)),
           milliseconds(r->value("planned_step_s")), milliseconds(r->value("step_s")),
           change(r->value("step_s"), predicted_s(*r)),
           text_cell(r->ran() ? fmt::to_string(place) : "-")});
    }
    made.sentences.push_back(order_sentence(search));
  }
  return made;
}

}  // namespace

std::vector<BenchTable> parallel_tables(const std::vector<CaseResult>& results) {
  std::vector<BenchTable> all = {
      speed_table(results),
      parts_table(results),
      stage_table(results),
      collective_table(results),
      scaling_table(results, "5-weak", "Weak scaling: tokens of a rank stay", &Case::weak,
                    "weak_efficiency"),
      scaling_table(results, "6-strong", "Strong scaling: tokens of a step stay", &Case::strong,
                    "strong_efficiency"),
      auto_table(results)};
  std::erase_if(all, [](const BenchTable& table) { return table.table.rows.empty(); });
  return all;
}

std::vector<std::string> not_run(const std::vector<CaseResult>& results) {
  std::vector<std::string> texts;
  for (const CaseResult& r : results) {
    if (r.ran() && r.failure.empty()) continue;
    texts.push_back(fmt::format("{} on {} rank{}, {} samples, {}: {}", r.recipe, r.which.ranks,
                                r.which.ranks == 1 ? "" : "s", r.which.samples,
                                scaling_words(r.which), r.failure.empty() ? "not run" : r.failure));
  }
  return texts;
}

}  // namespace dstrain::bench
