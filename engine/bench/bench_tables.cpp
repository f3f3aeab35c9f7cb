#include "engine/bench/bench_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "engine/report/words.h"

namespace dstrain::bench {
namespace {

using report::Cell;

/// A column of a table with a row for each case: a figure, or what else a result says.
struct CaseColumn {
  std::string title;
  std::function<Cell(const CaseResult&)> cell;

  CaseColumn(std::string name, std::function<Cell(const CaseResult&)> of)
      : title(std::move(name)), cell(std::move(of)) {}
  CaseColumn(const Column& column)  // NOLINT(google-explicit-constructor)
      : title(column.title),
        cell([column](const CaseResult& r) { return column.cell(r.figures); }) {}
};

const CaseColumn kRecipe = {"recipe", [](const CaseResult& r) { return text_cell(r.recipe); }};
const CaseColumn kVariant = {"configuration",
                             [](const CaseResult& r) { return text_cell(r.variant); }};
const CaseColumn kRanks = {"ranks", [](const CaseResult& r) {
                             return Cell{.text = fmt::to_string(r.which.ranks),
                                         .figure = {},
                                         .value = static_cast<double>(r.which.ranks)};
                           }};
const CaseColumn kEvaluationLosses = {"evaluation losses", [](const CaseResult& r) {
                                        std::string text;
                                        for (const double loss : r.evaluation_losses)
                                          text += (text.empty() ? "" : ", ") +
                                                  report::number_words(loss);
                                        return text_cell(text.empty() ? "-" : text);
                                      }};
const CaseColumn kLastEvaluationLoss = {
    "evaluation loss", [](const CaseResult& r) {
      return value_cell(r.evaluation_losses.empty() ? kUnknown : r.evaluation_losses.back());
    }};

report::Table table_of(const std::vector<const CaseResult*>& rows,
                       const std::vector<CaseColumn>& columns) {
  report::Table table;
  for (const CaseColumn& column : columns) table.header.push_back(column.title);
  for (const CaseResult* row : rows) {
    table.rows.emplace_back();
    for (const CaseColumn& column : columns) table.rows.back().push_back(column.cell(*row));
  }
  return table;
}

bool has_addition(const std::string& variant, std::string_view addition) {
  return (variant + "+").find(fmt::format("+{}+", addition)) != std::string::npos;
}
/// The name of a variant without an addition.
std::string without(const std::string& variant, std::string_view addition) {
  std::string name = variant + "+";
  const std::string word = fmt::format("+{}+", addition);
  if (const std::size_t at = name.find(word); at != std::string::npos)
    name.replace(at, word.size(), "+");
  name.pop_back();
  return name;
}
bool same_case_but_variant(const CaseResult& a, const CaseResult& b) {
  return a.which.recipe == b.which.recipe && a.which.ranks == b.which.ranks;
}

using Pair = std::pair<const CaseResult*, const CaseResult*>;
/// Cases without and with an addition to the same variant.
std::vector<Pair> pairs_with(const std::vector<CaseResult>& results, std::string_view addition) {
  std::vector<Pair> pairs;
  for (const CaseResult& with : results) {
    if (!has_addition(with.variant, addition)) continue;
    for (const CaseResult& base : results) {
      if (same_case_but_variant(base, with) && base.variant == without(with.variant, addition))
        pairs.emplace_back(&base, &with);
    }
  }
  return pairs;
}

class TableMaker {
 public:
  TableMaker(const BenchPlan& plan, const std::vector<CaseResult>& results)
      : plan_(plan), results_(results) {
    for (const CaseResult& result : results) all_.push_back(&result);
  }

  BenchTables make(TableSet set) {
    add("1-training", "Losses and rates", all_,
        {kRecipe, kVariant, kRanks, Column{"training loss", "final_loss"}, kEvaluationLosses,
         Column{"training samples/s", "samples_per_s", 2},
         Column{"evaluation samples/s", "evaluation_samples_per_s", 2},
         Column{"steps per epoch", "steps_per_epoch", 0}});
    add("2-gpu-memory", "GPU memory (MiB, as nvidia-smi says)", all_,
        {kRecipe, kVariant, kRanks, Column{"peak", "gpu_peak", 0}, Column{"mean", "gpu_mean", 0},
         Column{"min", "gpu_min", 0}});
    pinned();
    add("4-configurations", "By model and data", all_,
        {{"model", [](const CaseResult& r) { return text_cell(r.model.empty() ? "-" : r.model); }},
         {"data", [](const CaseResult& r) { return text_cell(r.data.empty() ? "-" : r.data); }},
         kVariant,
         kRanks,
         Column{"peak GPU MiB", "gpu_peak", 0},
         Column{"peak CPU MiB", "cpu_peak", 0},
         Column{"runtime s", "program_seconds", 1}});
    scaling();
    offload();
    add("8-strategies", "Strategies", all_,
        {kRecipe,
         {"strategy", kVariant.cell},
         kRanks,
         Column{"samples/s", "samples_per_s", 2},
         Column{"GPU MiB per rank, peak", "gpu_peak", 0}});
    if (set == TableSet::full) full();
    return std::move(made_);
  }

 private:
  void add(std::string file, std::string title, const std::vector<const CaseResult*>& rows,
           const std::vector<CaseColumn>& columns) {
    made_.tables.push_back(
        {.file = std::move(file), .title = std::move(title), .table = table_of(rows, columns)});
  }
  void leave_out(std::string_view title, std::string_view reason) {
    made_.left_out.push_back(fmt::format("{}: {}", title, reason));
  }

  void pinned() {
    std::vector<const CaseResult*> rows;
    for (const CaseResult& result : results_) {
      if (has_addition(result.variant, "pinned") || has_addition(result.variant, "pageable"))
        rows.push_back(&result);
    }
    if (rows.empty()) return leave_out("Pinned memory", "no variant has +pinned or +pageable");
    add("3-pinned", "Pinned memory", rows,
        {kRecipe,
         {"configuration",
          [](const CaseResult& r) {
            return text_cell(without(without(r.variant, "pinned"), "pageable"));
          }},
         {"pinned",
          [](const CaseResult& r) {
            return text_cell(has_addition(r.variant, "pinned") ? "true" : "false");
          }},
         kRanks,
         Column{"peak GPU MiB", "gpu_peak", 0},
         Column{"peak CPU MiB", "cpu_peak", 0},
         Column{"runtime s", "program_seconds", 1},
         Column{"samples/s", "samples_per_s", 2}});
  }

  void scaling() {
    constexpr const char* kTitles[] = {"Scaling", "Weak scaling", "Strong scaling"};
    const std::string title = kTitles[static_cast<int>(plan_.scaling)];
    if (plan_.ranks.size() < 2)
      return leave_out(title, "one number of ranks; name several with --ranks");
    std::vector<const CaseResult*> rows = all_;
    std::ranges::stable_sort(
        rows, {}, [](const CaseResult* r) { return std::pair(r->which.recipe, r->which.variant); });
    std::vector<CaseColumn> columns = {
        kRecipe,
        kVariant,
        kRanks,
        Column{"runtime s", "program_seconds", 1},
        Column{"steps/s", "steps_per_s", 3},
        Column{"samples/s", "samples_per_s", 2},
        Column{"training loss", "final_loss"},
        kLastEvaluationLoss,
        Column{"evaluation samples/s", "evaluation_samples_per_s", 2},
        Column{"peak GPU MiB", "gpu_peak", 0},
        Column{"mean GPU MiB", "gpu_mean", 0}};
    if (plan_.scaling != Scaling::none)
      columns.insert(columns.begin() + 6, Column{"efficiency", "efficiency"});
    add("5-scaling", title, rows, columns);
  }

  void offload() {
    const std::string title = "Stages with and without offload";
    const std::vector<Pair> pairs = pairs_with(results_, "offload");
    if (pairs.empty()) {
      leave_out(title, "no variant is there with and without +offload");
      return leave_out("What offload saves and costs", "the same");
    }
    report::Table stages, saved;
    stages.header = {"recipe",       "stage",        "offload",     "ranks",
                     "peak GPU MiB", "mean GPU MiB", "peak CPU MiB"};
    saved.header = {"recipe", "stage", "ranks", "Mem Savings %", "Runtime delta %"};
    for (const auto& [off, on] : pairs) {
      for (const CaseResult* r : {off, on}) {
        stages.rows.push_back(
            {text_cell(r->recipe), text_cell(off->variant), text_cell(r == on ? "yes" : "no"),
             kRanks.cell(*r), number_cell(r->value("gpu_peak"), 0),
             number_cell(r->value("gpu_mean"), 0), number_cell(r->value("cpu_peak"), 0)});
      }
      saved.rows.push_back(
          {text_cell(on->recipe), text_cell(off->variant), kRanks.cell(*on),
           number_cell(
               (off->value("gpu_peak") - on->value("gpu_peak")) / off->value("gpu_peak") * 100, 1),
           number_cell((on->value("program_seconds") - off->value("program_seconds")) /
                           off->value("program_seconds") * 100,
                       1)});
    }
    made_.tables.push_back({"6-offload", title, std::move(stages)});
    made_.tables.push_back({"7-offload-savings", "What offload saves and costs", std::move(saved)});
  }

  void full() {
    const auto interval = [](const report::Estimate& estimate, double scale, int digits) {
      if (!std::isfinite(estimate.value)) return text_cell("-");
      std::string text = fmt::format("{:.{}f}", estimate.value * scale, digits);
      if (estimate.interval) {
        text += fmt::format(" [{:.{}f}, {:.{}f}]", estimate.interval->low * scale, digits,
                            estimate.interval->high * scale, digits);
      }
      return Cell{.text = text, .figure = {}, .value = estimate.value * scale};
    };
    add("9-comparison", "Comparison with the first configuration", all_,
        {kRecipe,
         kVariant,
         kRanks,
         {"runs", [](const CaseResult& r) { return number_cell(static_cast<double>(r.runs), 0); }},
         {"step ms (first run)",
          [=](const CaseResult& r) { return interval(r.figures["step_s"], 1e3, 3); }},
         {"speed",
          [](const CaseResult& r) {
            return Cell{.text = report::ratio_words(r.speed), .figure = {}, .value = r.speed.value};
          }},
         {"verdict", [](const CaseResult& r) { return text_cell(r.verdict); }},
         Column{"MFU %", "mfu", 1, 100},
         Column{"exposed communication %", "exposed_comm_share", 1, 100},
         Column{"allocated MiB", "memory_peak", 0, kPerMib},
         Column{"planned MiB", "memory_planned", 0, kPerMib}});
  }

  const BenchPlan& plan_;
  const std::vector<CaseResult>& results_;
  std::vector<const CaseResult*> all_;
  BenchTables made_;
};

}  // namespace

BenchTables bench_tables(const BenchPlan& plan, const std::vector<CaseResult>& results,
                         TableSet set) {
  return TableMaker(plan, results).make(set);
}

report::Document bench_document(const BenchTables& tables, const std::vector<CaseResult>& results) {
  std::size_t runs = 0, failed = 0;
  std::set<std::string> devices;
  std::vector<std::string> failures;
  for (const CaseResult& result : results) {
    runs += result.runs;
    failed += result.runs == 0 ? 1 : 0;
    if (!result.device.empty()) devices.insert(result.device);
    if (!result.failure.empty())
      failures.push_back(fmt::format("{}, {}, {} ranks: {}", result.recipe, result.variant,
                                     result.which.ranks, result.failure));
  }
  std::string lead = fmt::format("{} cases, {} runs on {}. Figures are medians of the repeats.",
                                 results.size(), runs, device_words(devices));
  if (failed > 0) lead += fmt::format(" {} cases have no run that ended well.", failed);
  return tables_document("Bench", lead, tables.tables,
                         {{"Failures", failures}, {"Left out", tables.left_out}});
}

}  // namespace dstrain::bench
