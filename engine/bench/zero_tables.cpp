#include "engine/bench/zero_tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "engine/bench/zero_sentences.h"

namespace dstrain::bench {

using report::Cell;

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

/// The columns of `first`, of kTraining and of `more`.
std::vector<CaseColumn> with_training(std::vector<CaseColumn> first,
                                      const std::vector<CaseColumn>& more) {
  first.insert(first.end(), std::begin(kTraining), std::end(kTraining));
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

std::string model_and_data(const CaseResult& result) {
  const auto known = [](const std::string& text) { return text.empty() ? "-" : text; };
  return fmt::format("{}, {} ({})", known(result.model), known(result.data), result.recipe);
}

const CaseColumn kModelAndData = {"Model and Data",
                                  [](const CaseResult& r) { return text_cell(model_and_data(r)); }};
const CaseColumn kRanksColumn = {
    "Ranks", [](const CaseResult& r) { return text_cell(fmt::to_string(r.which.ranks)); }};

/// Cells in groups of one recipe, and of one number of ranks; each in the order of its first one.
std::vector<CaseList> groups(const CaseList& cells, bool by_ranks) {
  std::vector<CaseList> all;
  for (const CaseResult* cell : cells) {
    const auto same = std::ranges::find_if(all, [&](const CaseList& group) {
      const Case& first = group.front()->which;
      return first.recipe == cell->which.recipe && (!by_ranks || first.ranks == cell->which.ranks);
    });
    if (same == all.end())
      all.push_back({cell});
    else
      same->push_back(cell);
  }
  return all;
}

/// Reasons of cells without figures; those of a recipe and number of ranks with the same reason are
/// one.
std::vector<std::string> reasons(const CaseList& cells) {
  struct Reason {
    const CaseResult* first;
    std::vector<std::string> ways;
  };
  std::vector<Reason> all;
  for (const CaseResult* cell : cells) {
    if (cell->ran()) continue;
    const auto same = std::ranges::find_if(all, [&](const Reason& reason) {
      return reason.first->which.recipe == cell->which.recipe &&
             reason.first->which.ranks == cell->which.ranks &&
             reason.first->failure == cell->failure;
    });
    const std::string words = way_words(*cell);
    if (same == all.end())
      all.push_back({cell, {words}});
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

void append(std::vector<std::string>& to, std::vector<std::string> more) {
  to.insert(to.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

/// With several groups, each sentence says which it is about.
void append_of_group(std::vector<std::string>& to, const std::string& group, bool several,
                     std::vector<std::string> sentences) {
  for (std::string& text : sentences)
    to.push_back(several ? fmt::format("{}: {}", group, text) : std::move(text));
}

std::string recipe_and_ranks(const CaseList& group) {
  const CaseResult& first = *group.front();
  return fmt::format("{}, {} rank{}", first.recipe, first.which.ranks,
                     first.which.ranks == 1 ? "" : "s");
}

BenchTable stage_table(const CaseList& group, std::size_t number) {
  const CaseResult& first = *group.front();
  BenchTable made{.file = fmt::format("1-stages-{}", number + 1),
                  .title = fmt::format("{} on {} ranks: stages without and with offload",
                                       first.recipe, first.which.ranks),
                  .table = {},
                  .sentences = stage_sentences(group),
                  .not_run = reasons(group)};
  CaseList columns = group;
  std::ranges::stable_sort(columns, {}, [](const CaseResult* c) { return c->which.way.offload; });
  made.table.header = {""};
  for (const CaseResult* cell : columns) made.table.header.push_back(way_words(*cell));
  const Column mean_cpu = {"Average CPU Memory (MiB)", "cpu_mean", 0};
  for (const CaseColumn& figure : with_training({}, {kCpuPeak, mean_cpu, kHostPlanned})) {
    std::vector<Cell>& row = made.table.rows.emplace_back();
    row.push_back(text_cell(figure.title));
    for (const CaseResult* cell : columns) row.push_back(figure.cell(*cell));
  }
  return made;
}

/// The two cells of each row of a comparison, and these cells, each once.
struct Pairs {
  std::vector<CasePair> pairs;
  CaseList cells;

  void add(const CaseResult* first, const CaseResult* second) {
    pairs.push_back({first, second});
    for (const CaseResult* cell : {first, second}) {
      if (std::ranges::find(cells, cell) == cells.end()) cells.push_back(cell);
    }
  }
};

/// Without and with offload.
Pairs offload_pairs(const CaseList& group) {
  Pairs made;
  for (const CaseResult* with : group) {
    const ZeroWay& way = with->which.way;
    if (way.offload == ZeroOffload::none) continue;
    for (const CaseResult* without : group) {
      if (without->which.way == ZeroWay{.stage = way.stage}) made.add(without, with);
    }
  }
  return made;
}

/// With pinned and with pageable memory.
Pairs pinned_pairs(const CaseList& group) {
  Pairs made;
  for (const CaseResult* pinned : group) {
    ZeroWay other = pinned->which.way;
    if (other.offload == ZeroOffload::none || !other.pinned) continue;
    other.pinned = false;
    for (const CaseResult* pageable : group) {
      if (pageable->which.way == other) made.add(pinned, pageable);
    }
  }
  return made;
}

/// A table of pairs; `add_rows` adds those of a group.
BenchTable pair_table(const char* file, const char* title, const std::vector<CaseList>& all,
                      Pairs (*pairs_of)(const CaseList&),
                      std::vector<std::string> (*sentences)(const std::vector<CasePair>&),
                      const std::function<void(report::Table&, const Pairs&)>& add_rows) {
  BenchTable made{.file = file,
                  .title = title,
                  .table = {},
                  .sentences = {},
                  .not_run = std::vector<std::string>()};
  for (const CaseList& group : all) {
    const Pairs found = pairs_of(group);
    if (found.pairs.empty()) continue;
    add_rows(made.table, found);
    append_of_group(made.sentences, recipe_and_ranks(group), all.size() > 1,
                    sentences(found.pairs));
    append(*made.not_run, reasons(found.cells));
  }
  return made;
}

BenchTable offload_table(const std::vector<CaseList>& all) {
  BenchTable made = pair_table(
      "2-offload", "What offload saves and costs", all, offload_pairs, offload_sentences,
      [](report::Table& table, const Pairs& found) {
        for (const auto& [without, with] : found.pairs) {
          const auto change = [a = without, b = with](auto percent, report::FigureKey figure) {
            return number_cell(percent(a->value(figure), b->value(figure)), 1);
          };
          table.rows.push_back(
              {kModelAndData.cell(*without), kRanksColumn.cell(*without),
               text_cell(fmt::to_string(with->which.way.stage)),
               text_cell(way_words(*with).substr(std::string_view("stage 0 + ").size())),
               kGpuPeak.cell(*without), kGpuPlanned.cell(*without), kGpuPeak.cell(*with),
               kGpuPlanned.cell(*with), change(savings_percent, "gpu_added_peak"),
               change(savings_percent, "device_planned"), kTrainRuntime.cell(*without),
               kTrainRuntime.cell(*with), change(change_percent, "train_seconds")});
        }
      });
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
  return made;
}

BenchTable pinned_table(const std::vector<CaseList>& all) {
  return pair_table(
      "3-pinned", "Pinned memory", all, pinned_pairs, pinned_sentences,
      [](report::Table& table, const Pairs& found) {
        const CaseColumn config = {"Config", [](const CaseResult& r) {
                                     const std::string words = way_words(r);
                                     return text_cell(words.substr(0, words.find(',')));
                                   }};
        const CaseColumn pinned = {"Pinned Memory", [](const CaseResult& r) {
                                     return text_cell(r.which.way.pinned ? "true" : "false");
                                   }};
        report::Table more =
            case_table(found.cells, {kModelAndData, kRanksColumn, config, pinned, kGpuPeak,
                                     kGpuPlanned, kCpuPeak, kHostPlanned, kRuntime, kTrainRuntime});
        table.header = std::move(more.header);
        std::ranges::move(more.rows, std::back_inserter(table.rows));
      });
}

/// A table with a row for each of `cells`, and sentences of each recipe.
BenchTable cell_table(const char* file, std::string title, const CaseList& cells,
                      const std::vector<CaseColumn>& columns,
                      std::vector<std::string> (*sentences)(const CaseList&)) {
  BenchTable made{.file = file,
                  .title = std::move(title),
                  .table = case_table(cells, columns),
                  .sentences = {},
                  .not_run = reasons(cells)};
  const std::vector<CaseList> all = groups(cells, false);
  for (const CaseList& group : all)
    append_of_group(made.sentences, group.front()->recipe, all.size() > 1, sentences(group));
  return made;
}

}  // namespace

BenchTables zero_tables(const std::vector<CaseResult>& cells) {
  BenchTables made;
  const CaseList stages = cases_where(cells, [](const CaseResult& c) { return !c.which.weak; });
  const CaseList scaling = cases_where(cells, [](const CaseResult& c) { return c.which.weak; });
  CaseList several = stages, one = stages;
  std::erase_if(several, [](const CaseResult* c) { return c->which.ranks == 1; });
  std::erase_if(one, [](const CaseResult* c) { return c->which.ranks > 1; });
  const auto add = [&](BenchTable table, const char* reason) {
    if (table.table.rows.empty())
      made.left_out.push_back(fmt::format("{}: {}", table.title, reason));
    else
      made.tables.push_back(std::move(table));
  };
  for (const CaseList& group : groups(several, true))
    made.tables.push_back(stage_table(group, made.tables.size()));
  if (several.empty())
    made.left_out.emplace_back("Stages without and with offload: --ranks names no number above 1");
  add(offload_table(groups(stages, true)),
      "no stage is there without and with offload; see --offload");
  add(pinned_table(groups(stages, true)),
      "no offload is there with both kinds of memory; --pinned both");
  const std::string way = scaling.empty() ? "" : ", " + way_words(*scaling.front());
  add(cell_table("4-scaling", "Weak scaling" + way, scaling,
                 with_training({kModelAndData, kRanksColumn},
                               {Column{"Efficiency (%)", "efficiency", 1, 100}}),
                 scaling_sentences),
      "--scaling names no numbers of ranks");
  const CaseColumn config = {"Config", [](const CaseResult& r) { return text_cell(way_words(r)); }};
  add(cell_table("5-one-rank", "One rank", one,
                 {kModelAndData, config, kGpuPeak, kGpuPlanned, kCpuPeak, kHostPlanned, kRuntime,
                  kStep, kStepPlanned},
                 one_rank_sentences),
      "--ranks does not name 1");
  return made;
}

}  // namespace dstrain::bench
