#include "engine/bench/bench_tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <set>

#include "engine/bench/table_cells.h"
#include "engine/report/words.h"

namespace dstrain::bench {
namespace {

using report::Cell;

/// A column of a table with a row for each case.
struct Column {
  std::string title;
  std::function<Cell(const CaseResult&)> cell;
};

Column number_column(std::string title, double CaseResult::* figure, int digits) {
  return {std::move(title),
          [figure, digits](const CaseResult& r) { return number_cell(r.*figure, digits); }};
}
Column value_column(std::string title, double CaseResult::* figure) {
  return {std::move(title), [figure](const CaseResult& r) { return value_cell(r.*figure); }};
}
Column memory_column(std::string title, MemoryRange CaseResult::* range,
                     double MemoryRange::* figure) {
  return {std::move(title),
          [range, figure](const CaseResult& r) { return number_cell(r.*range.*figure, 0); }};
}

const Column kRecipe = {"recipe", [](const CaseResult& r) { return text_cell(r.recipe); }};
const Column kVariant = {"configuration", [](const CaseResult& r) { return text_cell(r.variant); }};
const Column kRanks = {"ranks", [](const CaseResult& r) {
                         return Cell{.text = fmt::to_string(r.which.ranks),
                                     .figure = {},
                                     .value = static_cast<double>(r.which.ranks)};
                       }};
const Column kEvaluationLosses = {"evaluation losses", [](const CaseResult& r) {
                                    std::string text;
                                    for (const double loss : r.evaluation_losses)
                                      text +=
                                          (text.empty() ? "" : ", ") + report::number_words(loss);
                                    return text_cell(text.empty() ? "-" : text);
                                  }};
const Column kLastEvaluationLoss = {
    "evaluation loss", [](const CaseResult& r) {
      return value_cell(r.evaluation_losses.empty() ? kUnknown : r.evaluation_losses.back());
    }};

report::Table table_of(const std::vector<const CaseResult*>& rows,
                       const std::vector<Column>& columns) {
  report::Table table;
  for (const Column& column : columns) table.header.push_back(column.title);
  for (const CaseResult* row : rows) {
    table.rows.emplace_back();
    for (const Column& column : columns) table.rows.back().push_back(column.cell(*row));
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
        {kRecipe, kVariant, kRanks, value_column("training loss", &CaseResult::loss),
         kEvaluationLosses, number_column("training samples/s", &CaseResult::samples_per_s, 2),
         number_column("evaluation samples/s", &CaseResult::evaluation_samples_per_s, 2),
         number_column("steps per epoch", &CaseResult::steps_per_epoch, 0)});
    add("2-gpu-memory", "GPU memory (MiB, as nvidia-smi says)", all_,
        {kRecipe, kVariant, kRanks, gpu("peak", &MemoryRange::peak),
         gpu("mean", &MemoryRange::mean), gpu("min", &MemoryRange::min)});
    pinned();
    add("4-configurations", "By model and data", all_,
        {{"model", [](const CaseResult& r) { return text_cell(r.model.empty() ? "-" : r.model); }},
         {"data", [](const CaseResult& r) { return text_cell(r.data.empty() ? "-" : r.data); }},
         kVariant,
         kRanks,
         gpu("peak GPU MiB", &MemoryRange::peak),
         cpu("peak CPU MiB", &MemoryRange::peak),
         number_column("runtime s", &CaseResult::seconds, 1)});
    scaling();
    offload();
    add("8-strategies", "Strategies", all_,
        {kRecipe,
         {"strategy", kVariant.cell},
         kRanks,
         number_column("samples/s", &CaseResult::samples_per_s, 2),
         gpu("GPU MiB per rank, peak", &MemoryRange::peak)});
    if (set == TableSet::full) full();
    return std::move(made_);
  }

 private:
  static Column gpu(std::string title, double MemoryRange::* figure) {
    return memory_column(std::move(title), &CaseResult::gpu, figure);
  }
  static Column cpu(std::string title, double MemoryRange::* figure) {
    return memory_column(std::move(title), &CaseResult::cpu, figure);
  }

  void add(std::string file, std::string title, const std::vector<const CaseResult*>& rows,
           const std::vector<Column>& columns) {
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
         gpu("peak GPU MiB", &MemoryRange::peak),
         cpu("peak CPU MiB", &MemoryRange::peak),
         number_column("runtime s", &CaseResult::seconds, 1),
         number_column("samples/s", &CaseResult::samples_per_s, 2)});
  }

  void scaling() {
    constexpr const char* kTitles[] = {"Scaling", "Weak scaling", "Strong scaling"};
    const std::string title = kTitles[static_cast<int>(plan_.scaling)];
    if (plan_.ranks.size() < 2)
      return leave_out(title, "one number of ranks; name several with --ranks");
    std::vector<const CaseResult*> rows = all_;
    std::ranges::stable_sort(
        rows, {}, [](const CaseResult* r) { return std::pair(r->which.recipe, r->which.variant); });
    std::vector<Column> columns = {
        kRecipe,
        kVariant,
        kRanks,
        number_column("runtime s", &CaseResult::seconds, 1),
        number_column("steps/s", &CaseResult::steps_per_s, 3),
        number_column("samples/s", &CaseResult::samples_per_s, 2),
        value_column("training loss", &CaseResult::loss),
        kLastEvaluationLoss,
        number_column("evaluation samples/s", &CaseResult::evaluation_samples_per_s, 2),
        gpu("peak GPU MiB", &MemoryRange::peak),
        gpu("mean GPU MiB", &MemoryRange::mean)};
    if (plan_.scaling != Scaling::none)
      columns.insert(columns.begin() + 6, value_column("efficiency", &CaseResult::efficiency));
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
        stages.rows.push_back({text_cell(r->recipe), text_cell(off->variant),
                               text_cell(r == on ? "yes" : "no"), kRanks.cell(*r),
                               number_cell(r->gpu.peak, 0), number_cell(r->gpu.mean, 0),
                               number_cell(r->cpu.peak, 0)});
      }
      saved.rows.push_back({text_cell(on->recipe), text_cell(off->variant), kRanks.cell(*on),
                            number_cell((off->gpu.peak - on->gpu.peak) / off->gpu.peak * 100, 1),
                            number_cell((on->seconds - off->seconds) / off->seconds * 100, 1)});
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
    const auto mebibytes = [](double bytes) { return number_cell(bytes / (1 << 20), 0); };
    const auto percent = [](double share) { return number_cell(share * 100, 1); };
    add("9-comparison", "Comparison with the first configuration", all_,
        {kRecipe,
         kVariant,
         kRanks,
         {"runs", [](const CaseResult& r) { return number_cell(static_cast<double>(r.runs), 0); }},
         {"step ms (first run)", [=](const CaseResult& r) { return interval(r.step_s, 1e3, 3); }},
         {"speed",
          [](const CaseResult& r) {
            return Cell{.text = report::ratio_words(r.speed), .figure = {}, .value = r.speed.value};
          }},
         {"verdict", [](const CaseResult& r) { return text_cell(r.verdict); }},
         {"MFU %", [=](const CaseResult& r) { return percent(r.mfu); }},
         {"exposed communication %",
          [=](const CaseResult& r) { return percent(r.exposed_comm_share); }},
         {"allocated MiB", [=](const CaseResult& r) { return mebibytes(r.memory_peak); }},
         {"planned MiB", [=](const CaseResult& r) { return mebibytes(r.memory_planned); }}});
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
  for (const CaseResult& result : results) {
    runs += result.runs;
    failed += result.runs == 0 ? 1 : 0;
    if (!result.device.empty()) devices.insert(result.device);
  }
  report::Document document{.title = "Bench", .lead = {}, .sections = {}};
  document.lead = fmt::format(
      "{} cases, {} runs on {}. Figures are medians of the repeats.", results.size(), runs,
      devices.empty() ? "no device" : fmt::format("{}", fmt::join(devices, ", ")));
  if (failed > 0) document.lead += fmt::format(" {} cases have no run that ended well.", failed);
  for (const BenchTable& table : tables.tables)
    document.sections.push_back({.title = table.title, .blocks = {table.table}});
  report::List failures;
  for (const CaseResult& result : results) {
    if (result.failure.empty()) continue;
    failures.items.push_back(fmt::format("{}, {}, {} ranks: {}", result.recipe, result.variant,
                                         result.which.ranks, result.failure));
  }
  if (!failures.items.empty())
    document.sections.push_back({.title = "Failures", .blocks = {failures}});
  if (!tables.left_out.empty()) {
    document.sections.push_back(
        {.title = "Left out", .blocks = {report::List{.items = tables.left_out}}});
  }
  return document;
}

std::string table_csv(const report::Table& table) {
  std::string out;
  const auto append = [&out](const std::string& text, bool last) {
    const bool quote = text.find_first_of(",\"\n") != std::string::npos;
    std::string escaped;
    for (const char c : text) escaped += c == '"' ? "\"\"" : std::string(1, c);
    out += (quote ? "\"" + escaped + "\"" : escaped) + (last ? "\n" : ",");
  };
  for (std::size_t i = 0; i < table.header.size(); ++i)
    append(table.header[i], i + 1 == table.header.size());
  for (const auto& row : table.rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      append(std::isfinite(row[i].value) ? fmt::format("{:.10g}", row[i].value) : row[i].text,
             i + 1 == row.size());
    }
  }
  return out;
}

}  // namespace dstrain::bench
