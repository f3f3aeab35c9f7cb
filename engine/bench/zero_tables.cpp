#include "engine/bench/zero_tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "engine/bench/zero_sentences.h"

namespace dstrain::bench {

using report::Cell;
using report::Table;

double change_percent(double before, double after) { return (after - before) / before * 100; }

double savings_percent(double before, double after) { return (before - after) / before * 100; }

namespace {

constexpr Column kGpuPeak = {"Peak GPU Memory (MiB)", "gpu_added_peak", 0};
constexpr Column kGpuPlanned = {"planned", "device_planned", 0, kPerMib};
constexpr Column kCpuPeak = {"Peak CPU Memory (MiB)", "cpu_peak", 0};
constexpr Column kHostPlanned = {"Offloaded as planned (MiB)", "host_planned", 0, kPerMib};
constexpr Column kRuntime = {"Total Runtime (sec)", "program_seconds", 1};
constexpr Column kTrainRuntime = {"Train Runtime (sec)", "train_seconds", 2};
constexpr Column kStep = {"Step (ms)", "step_s", 2, 1e3};
constexpr Column kStepPlanned = {"Step as planned (ms)", "planned_step_s", 2, 1e3};

/// What a training is asked for, in the order of the tables.
constexpr Column kTraining[] = {kTrainRuntime,
                                {"Steps/sec", "steps_per_s", 3},
                                {"Samples/sec", "samples_per_s", 2},
                                kStep,
                                kStepPlanned,
                                {"Train Loss", "final_loss"},
                                {"Eval Loss (final)", "evaluation_loss"},
                                {"Eval Speed (samples/sec)", "evaluation_samples_per_s", 2},
                                kGpuPeak,
                                {"Peak GPU Memory as planned (MiB)", "device_planned", 0, kPerMib},
                                {"Average GPU Memory (MiB)", "gpu_added_mean", 0},
                                {"Peak allocated by dstrain (MiB)", "memory_peak", 0, kPerMib},
                                {"allocated as planned (MiB)", "memory_planned", 0, kPerMib}};

std::vector<Column> training_and(std::vector<Column> more) {
  more.insert(more.begin(), std::begin(kTraining), std::end(kTraining));
  return more;
}

Cell cell_of(const Column& column, const ZeroCell& cell) {
  return column.cell(cell.result.figures);
}
void add_titles(Table& table, const std::vector<Column>& columns) {
  for (const Column& column : columns) table.header.emplace_back(column.title);
}
/// A row that begins with these cells.
void add_row(Table& table, std::vector<Cell> row, const ZeroCell& cell,
             const std::vector<Column>& columns) {
  for (const Column& column : columns) row.push_back(cell_of(column, cell));
  table.rows.push_back(std::move(row));
}

std::string model_and_data(const CaseResult& result) {
  const auto known = [](const std::string& text) { return text.empty() ? "-" : text; };
  return fmt::format("{}, {} ({})", known(result.model), known(result.data), result.recipe);
}

/// Cells in groups of equal key, each in the order of its first one.
std::vector<CellList> groups(const std::vector<ZeroCell>& cells,
                             const std::function<bool(const ZeroCell&)>& wanted, bool by_ranks) {
  std::vector<CellList> all;
  for (const ZeroCell& cell : cells) {
    if (!wanted(cell)) continue;
    const auto same = std::ranges::find_if(all, [&](const CellList& group) {
      const Case& first = group.front()->result.which;
      return first.recipe == cell.result.which.recipe &&
             (!by_ranks || first.ranks == cell.result.which.ranks);
    });
    if (same == all.end())
      all.push_back({&cell});
    else
      same->push_back(&cell);
  }
  return all;
}

/// Reasons of cells without figures; those of a recipe and number of ranks with the same reason are one.
std::vector<std::string> reasons(const CellList& cells) {
  struct Reason {
    const CaseResult* first;
    std::vector<std::string> ways;
  };
  std::vector<Reason> all;
  for (const ZeroCell* cell : cells) {
    if (cell->ran()) continue;
    const auto same = std::ranges::find_if(all, [&](const Reason& reason) {
      return reason.first->which.recipe == cell->result.which.recipe &&
             reason.first->which.ranks == cell->result.which.ranks &&
             reason.first->failure == cell->result.failure;
    });
    const std::string words = way_words(cell->way);
    if (same == all.end())
      all.push_back({&cell->result, {words}});
    else if (std::ranges::find(same->ways, words) == same->ways.end())
      same->ways.push_back(words);
  }
  std::vector<std::string> texts;
  for (const Reason& reason : all) {
    const int ranks = reason.first->which.ranks;
    texts.push_back(fmt::format("{} on {} rank{}, {}: {}", reason.first->recipe, ranks,
                                ranks == 1 ? "" : "s", fmt::join(reason.ways, "; "),
                                reason.first->failure.empty() ? "not run" : reason.first->failure));
  }
  return texts;
}

CellList joined(const std::vector<CellList>& groups) {
  CellList all;
  for (const CellList& group : groups) all.insert(all.end(), group.begin(), group.end());
  return all;
}

void append(std::vector<std::string>& to, std::vector<std::string> more) {
  to.insert(to.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

/// With several groups, each sentence says which it is about.
void append_of_group(std::vector<std::string>& to, const std::string& group, bool several,
                     std::vector<std::string> sentences) {
  for (std::string& text : sentences)
    to.push_back(several ? fmt::format("{}: {}", group, text) : std::move(text));
}

std::string recipe_and_ranks(const CellList& group) {
  const CaseResult& first = group.front()->result;
  return fmt::format("{}, {} rank{}", first.recipe, first.which.ranks,
                     first.which.ranks == 1 ? "" : "s");
}

BenchTable stage_table(const CellList& group, std::size_t number) {
  const CaseResult& first = group.front()->result;
  BenchTable made{.file = fmt::format("1-stages-{}", number + 1),
                  .title = fmt::format("{} on {} ranks: stages without and with offload",
                                       first.recipe, first.which.ranks),
                  .table = {},
                  .sentences = stage_sentences(group),
                  .not_run = reasons(group)};
  CellList columns = group;
  std::ranges::stable_sort(columns, {}, [](const ZeroCell* c) { return c->way.offload; });
  made.table.header = {""};
  for (const ZeroCell* cell : columns) made.table.header.push_back(way_words(cell->way));
  for (const Column& figure :
       training_and({kCpuPeak, {"Average CPU Memory (MiB)", "cpu_mean", 0}, kHostPlanned})) {
    std::vector<Cell>& row = made.table.rows.emplace_back();
    row.push_back(text_cell(figure.title));
    for (const ZeroCell* cell : columns) row.push_back(cell_of(figure, *cell));
  }
  return made;
}

std::vector<OffloadPair> offload_pairs(const CellList& group) {
  std::vector<OffloadPair> pairs;
  for (const ZeroCell* with : group) {
    if (with->way.offload == ZeroOffload::none) continue;
    for (const ZeroCell* without : group) {
      if (without->way == ZeroWay{.stage = with->way.stage}) pairs.push_back({without, with});
    }
  }
  return pairs;
}

std::vector<PinnedPair> pinned_pairs(const CellList& group) {
  std::vector<PinnedPair> pairs;
  for (const ZeroCell* pinned : group) {
    ZeroWay other = pinned->way;
    if (other.offload == ZeroOffload::none || !other.pinned) continue;
    other.pinned = false;
    for (const ZeroCell* pageable : group) {
      if (pageable->way == other) pairs.push_back({pinned, pageable});
    }
  }
  return pairs;
}

BenchTable offload_table(const std::vector<CellList>& all) {
  BenchTable made{.file = "2-offload",
                  .title = "What offload saves and costs",
                  .table = {},
                  .sentences = {},
                  .not_run = std::vector<std::string>()};
  made.table.cut = 0;
  made.table.header = {"Model and Data",
                       "Ranks",
                       "Stage",
                       "Offload",
                       "GPU Mem (No Offload)",
                       "planned",
                       "GPU Mem (Offload)",
                       "planned",
                       "Mem Savings (%)",
                       "Savings as planned (%)",
                       "Train Runtime (No Offload)",
                       "Train Runtime (Offload)",
                       "Runtime change (%)"};
  for (const CellList& group : all) {
    const std::vector<OffloadPair> pairs = offload_pairs(group);
    CellList used;
    for (const auto& [without, with] : pairs) {
      const CaseResult& a = without->result;
      const CaseResult& b = with->result;
      made.table.rows.push_back(
          {text_cell(model_and_data(a)), text_cell(fmt::to_string(a.which.ranks)),
           text_cell(fmt::to_string(with->way.stage)),
           text_cell(way_words(with->way).substr(std::string_view("stage 0 + ").size())),
           cell_of(kGpuPeak, *without), cell_of(kGpuPlanned, *without), cell_of(kGpuPeak, *with),
           cell_of(kGpuPlanned, *with),
           number_cell(savings_percent(a.value("gpu_added_peak"), b.value("gpu_added_peak")), 1),
           number_cell(savings_percent(a.value("device_planned"), b.value("device_planned")), 1),
           cell_of(kTrainRuntime, *without), cell_of(kTrainRuntime, *with),
           number_cell(change_percent(a.value("train_seconds"), b.value("train_seconds")), 1)});
      for (const ZeroCell* cell : {without, with}) {
        if (std::ranges::find(used, cell) == used.end()) used.push_back(cell);
      }
    }
    if (pairs.empty()) continue;
    append_of_group(made.sentences, recipe_and_ranks(group), all.size() > 1,
                    offload_sentences(pairs));
    append(*made.not_run, reasons(used));
  }
  return made;
}

BenchTable pinned_table(const std::vector<CellList>& all) {
  BenchTable made{.file = "3-pinned",
                  .title = "Pinned memory",
                  .table = {},
                  .sentences = {},
                  .not_run = std::vector<std::string>()};
  made.table.header = {"Model and Data", "Ranks", "Config", "Pinned Memory"};
  const std::vector<Column> columns = {kGpuPeak,     kGpuPlanned, kCpuPeak,
                                       kHostPlanned, kRuntime,    kTrainRuntime};
  add_titles(made.table, columns);
  for (const CellList& group : all) {
    const std::vector<PinnedPair> pairs = pinned_pairs(group);
    CellList used;
    for (const auto& [pinned, pageable] : pairs) {
      for (const ZeroCell* cell : {pinned, pageable}) {
        const std::string words = way_words(cell->way);
        add_row(made.table,
                {text_cell(model_and_data(cell->result)),
                 text_cell(fmt::to_string(cell->result.which.ranks)),
                 text_cell(words.substr(0, words.find(','))),
                 text_cell(cell->way.pinned ? "true" : "false")},
                *cell, columns);
        used.push_back(cell);
      }
    }
    append(*made.not_run, reasons(used));
    if (!pairs.empty())
      append_of_group(made.sentences, recipe_and_ranks(group), all.size() > 1,
                      pinned_sentences(pairs));
  }
  return made;
}

BenchTable scaling_table(const std::vector<CellList>& all) {
  BenchTable made{.file = "4-scaling",
                  .title = fmt::format("Weak scaling, {}", way_words(all.front().front()->way)),
                  .table = {},
                  .sentences = {},
                  .not_run = reasons(joined(all))};
  made.table.header = {"Model and Data", "Ranks"};
  const std::vector<Column> columns = training_and({{"Efficiency (%)", "efficiency", 1, 100}});
  add_titles(made.table, columns);
  for (const CellList& group : all) {
    for (const ZeroCell* cell : group) {
      add_row(made.table,
              {text_cell(model_and_data(cell->result)),
               text_cell(fmt::to_string(cell->result.which.ranks))},
              *cell, columns);
    }
    append_of_group(made.sentences, group.front()->result.recipe, all.size() > 1,
                    scaling_sentences(group));
  }
  return made;
}

BenchTable one_rank_table(const std::vector<CellList>& all) {
  BenchTable made{.file = "5-one-rank",
                  .title = "One rank",
                  .table = {},
                  .sentences = {},
                  .not_run = reasons(joined(all))};
  made.table.header = {"Model and Data", "Config"};
  const std::vector<Column> columns = {kGpuPeak, kGpuPlanned, kCpuPeak,    kHostPlanned,
                                       kRuntime, kStep,       kStepPlanned};
  add_titles(made.table, columns);
  for (const CellList& group : all) {
    for (const ZeroCell* cell : group) {
      add_row(made.table,
              {text_cell(model_and_data(cell->result)), text_cell(way_words(cell->way))}, *cell,
              columns);
    }
    append_of_group(made.sentences, group.front()->result.recipe, all.size() > 1,
                    one_rank_sentences(group));
  }
  return made;
}

}  // namespace

BenchTables zero_tables(const std::vector<ZeroCell>& cells) {
  const auto on_ranks = [](const ZeroCell& c) { return !c.scaling && c.result.which.ranks > 1; };
  const auto on_one = [](const ZeroCell& c) { return !c.scaling && c.result.which.ranks == 1; };
  const auto any = [](const ZeroCell& c) { return !c.scaling; };
  const auto weak = [](const ZeroCell& c) { return c.scaling; };
  BenchTables made;
  const std::vector<CellList> several = groups(cells, on_ranks, true);
  const std::vector<CellList> stages = groups(cells, any, true);
  const std::vector<CellList> scaling = groups(cells, weak, false);
  const std::vector<CellList> one = groups(cells, on_one, true);
  const auto add = [&](BenchTable table, const char* reason) {
    if (table.table.rows.empty())
      made.left_out.push_back(fmt::format("{}: {}", table.title, reason));
    else
      made.tables.push_back(std::move(table));
  };
  for (std::size_t i = 0; i < several.size(); ++i)
    made.tables.push_back(stage_table(several[i], i));
  if (several.empty())
    made.left_out.emplace_back("Stages without and with offload: --ranks names no number above 1");
  add(offload_table(stages), "no stage is there without and with offload; see --offload");
  add(pinned_table(stages), "no offload is there with both kinds of memory; --pinned both");
  if (scaling.empty())
    made.left_out.emplace_back("Weak scaling: --scaling names no numbers of ranks");
  else
    made.tables.push_back(scaling_table(scaling));
  if (one.empty())
    made.left_out.emplace_back("One rank: --ranks does not name 1");
  else
    made.tables.push_back(one_rank_table(one));
  return made;
}

}  // namespace dstrain::bench
