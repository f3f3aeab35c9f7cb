#include "engine/bench/parallel_tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "engine/bench/table_cells.h"
#include "engine/report/words.h"

namespace dstrain::bench {
namespace {

using report::Cell;

constexpr double kGib = 1 << 30;

Cell milliseconds(double seconds) { return number_cell(seconds * 1e3, 2); }
Cell percents(double share) { return number_cell(share * 100, 1); }
Cell gibibytes(double bytes) { return number_cell(bytes / kGib, 3); }

/// Change of `value` beside `base` in per cent.
Cell change(double value, double base) { return number_cell((value / base - 1) * 100, 1); }

std::string scaling_words(const ParallelWay& way) {
  if (way.row > 0)
    return fmt::format("--auto {}{}", way.row, way.row_is_default ? " (default)" : "");
  return way.weak && way.strong ? "weak, strong" : way.weak ? "weak" : "strong";
}

/// Cells that say which way a row is about.
std::vector<Cell> names(const ParallelResult& result) {
  return {text_cell(result.recipe), text_cell(fmt::to_string(result.way.ranks)),
          text_cell(scaling_words(result.way)),
          text_cell(result.layout.empty() ? "-" : result.layout)};
}
const std::vector<std::string> kNames = {"Recipe", "Ranks", "Scaling", "Layout"};

report::Table with_header(std::vector<std::string> more) {
  report::Table table{.header = kNames, .rows = {}};
  table.header.insert(table.header.end(), more.begin(), more.end());
  return table;
}

void add_row(report::Table& table, const ParallelResult& result, std::vector<Cell> more) {
  std::vector<Cell> row = names(result);
  row.insert(row.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  table.rows.push_back(std::move(row));
}

Cell batch_cell(const ParallelResult& result) {
  if (!std::isfinite(result.micro)) return text_cell("-");
  return text_cell(fmt::format("{:.0f} x {:.0f}", result.micro, result.micro_batches));
}

ParallelTable speed_table(const std::vector<ParallelResult>& results) {
  ParallelTable made{.file = "1-speed", .title = "Speed"};
  made.table = with_header({"Schedule", "Micro x", "Samples", "Rate/s/rank", "MFU %", "Step ms",
                            "planned", "Difference %", "Peak GiB", "planned"});
  for (const ParallelResult& r : results) {
    add_row(made.table, r,
            {text_cell(r.schedule.empty() ? "-" : r.schedule),
             batch_cell(r),
             text_cell(fmt::to_string(r.way.samples)),
             {.text = report::rate_words(r.rank_rate()), .figure = {}, .value = r.rank_rate()},
             percents(r.mfu),
             milliseconds(r.step_s),
             milliseconds(r.planned_step_s),
             change(r.step_s, r.planned_step_s),
             gibibytes(r.memory),
             gibibytes(r.planned_memory)});
  }
  return made;
}

ParallelTable parts_table(const std::vector<ParallelResult>& results) {
  ParallelTable made{.file = "2-parts", .title = "Parts of a step"};
  made.table = with_header({"Forward ms", "Backward ms", "Weight ms", "Optimizer ms", "in blocks",
                            "Gather ms", "Reduce ms", "Stages ms", "Norm ms", "Input ms",
                            "Bubble %", "simulated", "Exchanges ms", "planned", "Contention ms"});
  for (const ParallelResult& r : results) {
    if (r.runs == 0) continue;
    const ExposedTime& e = r.exposed;
    add_row(
        made.table, r,
        {milliseconds(r.forward_s), milliseconds(r.backward_s),
         r.weight_s > 0 ? milliseconds(r.weight_s) : text_cell("-"), milliseconds(r.optimizer_s),
         milliseconds(e.blocks), milliseconds(e.gather), milliseconds(e.reduce),
         milliseconds(e.stages), milliseconds(e.norm), milliseconds(e.input), percents(r.bubble),
         percents(r.planned_bubble), milliseconds(r.exchange_s()),
         milliseconds(r.planned_exchange_s()), milliseconds(r.contention_s())});
  }
  return made;
}

ParallelTable stage_table(const std::vector<ParallelResult>& results) {
  ParallelTable made{.file = "3-stages", .title = "Stages"};
  made.table = with_header({"Stage", "Blocks of chunks", "Peak GiB", "planned", "Difference %",
                            "Bubble %", "simulated"});
  for (const ParallelResult& r : results) {
    for (const StageFigures& stage : r.stages) {
      add_row(made.table, r,
              {text_cell(fmt::to_string(stage.stage)),
               text_cell(stage.blocks.empty() ? "-" : stage.blocks), gibibytes(stage.peak),
               gibibytes(stage.planned), change(stage.peak, stage.planned), percents(stage.bubble),
               percents(stage.planned_bubble)});
    }
  }
  return made;
}

ParallelTable collective_table(const std::vector<ParallelResult>& results) {
  ParallelTable made{.file = "4-collectives", .title = "Collectives of a step"};
  made.table =
      with_header({"Operation", "of", "Calls", "planned", "Bytes", "planned bytes", "Bus GB/s"});
  std::size_t equal = 0, all = 0;
  for (const ParallelResult& r : results) {
    if (r.runs == 0) continue;
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

ParallelTable scaling_table(const std::vector<ParallelResult>& results, const char* file,
                            const char* title, bool ParallelWay::* scaling,
                            double ParallelResult::* efficiency) {
  ParallelTable made{.file = file, .title = title};
  made.table = {.header = {"Recipe", "Ranks", "Layout", "Samples", "Rate/s", "Rate/s/rank",
                           "Efficiency %", "MFU %", "Bubble %"},
                .rows = {}};
  const auto rate = [](double value) {
    return Cell{.text = report::rate_words(value), .figure = {}, .value = value};
  };
  for (const ParallelResult& r : results) {
    if (!(r.way.*scaling) || r.runs == 0) continue;
    made.table.rows.push_back({text_cell(r.recipe), text_cell(fmt::to_string(r.way.ranks)),
                               text_cell(r.layout), text_cell(fmt::to_string(r.way.samples)),
                               rate(r.rank_rate() * r.way.ranks), rate(r.rank_rate()),
                               percents(r.*efficiency), percents(r.mfu), percents(r.bubble)});
  }
  return made;
}

/// Rows of a search on one number of ranks and the recipes' own layouts, by predicted time.
using Search = std::vector<const ParallelResult*>;

/// As the search says; of a recipe's own layout as its plan does.
double predicted_s(const ParallelResult& result) {
  return result.way.row > 0 ? result.way.row_step_s : result.planned_step_s;
}

std::vector<Search> searches(const std::vector<ParallelResult>& results) {
  std::vector<Search> all;
  for (const ParallelResult& r : results) {
    if (r.way.search < 0 || !std::isfinite(predicted_s(r))) continue;
    const auto same = [&](const Search& search) {
      return search.front()->way.search == r.way.search && search.front()->way.ranks == r.way.ranks;
    };
    const auto found = std::ranges::find_if(all, same);
    if (found == all.end())
      all.push_back({&r});
    else
      found->push_back(&r);
  }
  for (Search& search : all)
    std::ranges::stable_sort(search, {}, [](const ParallelResult* r) { return predicted_s(*r); });
  return all;
}

/// "row 2", "tiny_2d".
std::string row_words(const ParallelResult& result) {
  return result.way.row > 0 ? fmt::format("row {}", result.way.row) : result.recipe;
}

/// "2 ranks: the measured order is the predicted one." or which rows have changed places.
std::string order_sentence(const Search& search) {
  constexpr double kEqual = 0.01;  // of a step
  std::vector<std::string> swaps;
  std::size_t ran = 0;
  bool close = false;
  for (std::size_t i = 0; i < search.size(); ++i) {
    if (search[i]->runs == 0) continue;
    ++ran;
    for (std::size_t k = i + 1; k < search.size(); ++k) {
      const double gain = 1 - search[k]->step_s / search[i]->step_s;
      if (search[k]->runs == 0 || !(gain > 0)) continue;
      close = close || gain < kEqual;
      if (gain < kEqual) continue;
      swaps.push_back(fmt::format("{} is {:.1f} % faster than {}", row_words(*search[k]),
                                  100 * gain, row_words(*search[i])));
    }
  }
  const std::string place = fmt::format("{} ranks: ", search.front()->way.ranks);
  if (ran < 2) return place + "fewer than two rows ran, so there is no order to compare.";
  if (swaps.empty())
    return fmt::format("{}the measured order is the predicted one{}.", place,
                       close ? ", but for differences below 1 %" : "");
  return fmt::format("{}the measured order differs: {}.", place, fmt::join(swaps, ", "));
}

ParallelTable auto_table(const std::vector<ParallelResult>& results) {
  ParallelTable made{.file = "7-auto", .title = "Order of plan --auto"};
  made.table = {
      .header = {"Recipe", "Ranks", "Row", "Layout", "Schedule", "Micro x", "predicted ms",
                 "planned ms", "Step ms", "Difference %", "Measured place"},
      .rows = {}};
  for (const Search& search : searches(results)) {
    for (const ParallelResult* r : search) {
      std::size_t place = 1;
      for (const ParallelResult* other : search) place += other->step_s < r->step_s ? 1 : 0;
      made.table.rows.push_back(
          {text_cell(r->recipe), text_cell(fmt::to_string(r->way.ranks)),
           text_cell(r->way.row == 0         ? "recipe"
                     : r->way.row_is_default ? fmt::format("{} (default)", r->way.row)
                                             : fmt::to_string(r->way.row)),
           text_cell(r->layout.empty() ? "-" : r->layout),
           text_cell(r->schedule.empty() ? "-" : r->schedule), batch_cell(*r),
           milliseconds(predicted_s(*r)), milliseconds(r->planned_step_s), milliseconds(r->step_s),
           change(r->step_s, predicted_s(*r)),
           text_cell(r->runs > 0 ? fmt::to_string(place) : "-")});
    }
    made.sentences.push_back(order_sentence(search));
  }
  return made;
}

}  // namespace

std::vector<ParallelTable> parallel_tables(const std::vector<ParallelResult>& results) {
  std::vector<ParallelTable> all = {
      speed_table(results),
      parts_table(results),
      stage_table(results),
      collective_table(results),
      scaling_table(results, "5-weak", "Weak scaling: tokens of a rank stay", &ParallelWay::weak,
                    &ParallelResult::weak_efficiency),
      scaling_table(results, "6-strong", "Strong scaling: tokens of a step stay",
                    &ParallelWay::strong, &ParallelResult::strong_efficiency),
      auto_table(results)};
  std::erase_if(all, [](const ParallelTable& table) { return table.table.rows.empty(); });
  return all;
}

std::vector<std::string> not_run(const std::vector<ParallelResult>& results) {
  std::vector<std::string> texts;
  for (const ParallelResult& r : results) {
    if (r.runs > 0 && r.failure.empty()) continue;
    texts.push_back(fmt::format("{} on {} rank{}, {} samples, {}: {}", r.recipe, r.way.ranks,
                                r.way.ranks == 1 ? "" : "s", r.way.samples, scaling_words(r.way),
                                r.failure.empty() ? "not run" : r.failure));
  }
  return texts;
}

}  // namespace dstrain::bench
