#include "engine/bench/run_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/report/words.h"

namespace dstrain::bench {
namespace {

using report::Cell;

constexpr FieldColumn kRunFields[] = {
    {"evaluation_accuracy", "evaluation_accuracy"},
    {"steps_per_s", "steps_per_s"},
    {"samples_per_s", "samples_per_s"},
    {"tokens_per_s", "tokens_per_s"},
    {"evaluation_samples_per_s", "evaluation_samples_per_s"},
    {"steps_per_epoch", "steps_per_epoch"},
    {"seconds", "program_seconds"},
    {"train_seconds", "train_seconds"},
    {"gpu_mib.min", "gpu_min"},
    {"gpu_mib.mean", "gpu_mean"},
    {"gpu_mib.peak", "gpu_peak"},
    {"gpu_added_mib.min", "gpu_added_min"},
    {"gpu_added_mib.mean", "gpu_added_mean"},
    {"gpu_added_mib.peak", "gpu_added_peak"},
    {"cpu_mib.min", "cpu_min"},
    {"cpu_mib.mean", "cpu_mean"},
    {"cpu_mib.peak", "cpu_peak"},
    {"memory_peak_bytes", "memory_peak"},
    {"memory_planned_bytes", "memory_planned"},
    {"device_planned_bytes", "device_planned"},
    {"host_planned_bytes", "host_planned"},
    {"planned_step_s", "planned_step_s"},
};

const CaseColumn kRecipe = {"recipe", [](const CaseResult& r) { return text_cell(r.recipe); }};
const CaseColumn kVariant = {"configuration",
                             [](const CaseResult& r) { return text_cell(r.which.name); }};
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

/// Cases without and with an addition to the same variant.
std::vector<CasePair> pairs_with(const std::vector<CaseResult>& results,
                                 std::string_view addition) {
  std::vector<CasePair> pairs;
  for (const CaseResult& with : results) {
    if (!has_addition(with.which.name, addition)) continue;
    for (const CaseResult& base : results) {
      if (base.which.recipe == with.which.recipe && base.which.ranks == with.which.ranks &&
          base.which.name == without(with.which.name, addition))
        pairs.emplace_back(&base, &with);
    }
  }
  return pairs;
}

class TableMaker {
 public:
  explicit TableMaker(const std::vector<CaseResult>& results)
      : results_(results), all_(cases_where(results, [](const CaseResult&) { return true; })) {}

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
  void add(std::string file, std::string title, const CaseList& rows,
           const std::vector<CaseColumn>& columns) {
    made_.tables.push_back(
        {.file = std::move(file), .title = std::move(title), .table = case_table(rows, columns)});
  }
  void leave_out(std::string_view title, std::string_view reason) {
    made_.left_out.push_back(fmt::format("{}: {}", title, reason));
  }

  void pinned() {
    const CaseList rows = cases_where(results_, [](const CaseResult& r) {
      return has_addition(r.which.name, "pinned") || has_addition(r.which.name, "pageable");
    });
    if (rows.empty()) return leave_out("Pinned memory", "no variant has +pinned or +pageable");
    add("3-pinned", "Pinned memory", rows,
        {kRecipe,
         {"configuration",
          [](const CaseResult& r) {
            return text_cell(without(without(r.which.name, "pinned"), "pageable"));
          }},
         {"pinned",
          [](const CaseResult& r) {
            return text_cell(has_addition(r.which.name, "pinned") ? "true" : "false");
          }},
         kRanks,
         Column{"peak GPU MiB", "gpu_peak", 0},
         Column{"peak CPU MiB", "cpu_peak", 0},
         Column{"runtime s", "program_seconds", 1},
         Column{"samples/s", "samples_per_s", 2}});
  }

  void scaling() {
    const Case& first = results_.front().which;
    const std::string title = first.weak     ? "Weak scaling"
                              : first.strong ? "Strong scaling"
                                             : "Scaling";
    const auto other = [&](const CaseResult& r) { return r.which.ranks != first.ranks; };
    if (std::ranges::none_of(results_, other))
      return leave_out(title, "one number of ranks; name several with --ranks");
    CaseList rows = all_;
    std::ranges::stable_sort(rows, {}, [&](const CaseResult* r) {
      const auto same = [&](const CaseResult& one) { return one.which.name == r->which.name; };
      return std::pair(r->which.recipe, std::ranges::find_if(results_, same));
    });
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
    if (first.first_ranks > 0)
      columns.insert(columns.begin() + 6, Column{"efficiency", "efficiency"});
    add("5-scaling", title, rows, columns);
  }

  void offload() {
    const std::string title = "Stages with and without offload";
    const std::vector<CasePair> pairs = pairs_with(results_, "offload");
    if (pairs.empty()) {
      leave_out(title, "no variant is there with and without +offload");
      return leave_out("What offload saves and costs", "the same");
    }
    CaseList both;
    report::Table saved;
    saved.header = {"recipe", "stage", "ranks", "Mem Savings %", "Runtime delta %"};
    for (const auto& [off, on] : pairs) {
      both.insert(both.end(), {off, on});
      const auto change = [a = off, b = on](auto percent, report::FigureKey figure) {
        return number_cell(percent(a->value(figure), b->value(figure)), 1);
      };
      saved.rows.push_back({text_cell(on->recipe), text_cell(off->which.name), kRanks.cell(*on),
                            change(savings_percent, "gpu_peak"),
                            change(change_percent, "program_seconds")});
    }
    const CaseColumn stage = {
        "stage", [](const CaseResult& r) { return text_cell(without(r.which.name, "offload")); }};
    const CaseColumn offload = {
        "offload", [](const CaseResult& r) {
          return text_cell(has_addition(r.which.name, "offload") ? "yes" : "no");
        }};
    add("6-offload", title, both,
        {kRecipe, stage, offload, kRanks, Column{"peak GPU MiB", "gpu_peak", 0},
         Column{"mean GPU MiB", "gpu_mean", 0}, Column{"peak CPU MiB", "cpu_peak", 0}});
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

  const std::vector<CaseResult>& results_;
  CaseList all_;
  BenchTables made_;
};

}  // namespace

BenchTables run_tables(const std::vector<CaseResult>& results, TableSet set) {
  return TableMaker(results).make(set);
}

nlohmann::ordered_json results_json(const std::vector<CaseResult>& results) {
  auto rows = nlohmann::ordered_json::array();
  for (const CaseResult& r : results) {
    auto losses = nlohmann::ordered_json::array();
    for (const double loss : r.evaluation_losses) losses.push_back(number_json(loss));
    std::vector<Field> row = {{"recipe", r.recipe},
                              {"variant", r.which.name},
                              {"ranks", r.which.ranks},
                              {"model", r.model},
                              {"data", r.data},
                              {"device", r.device},
                              {"runs", r.runs},
                              {"failure", r.failure},
                              {"loss", number_json(r.value("final_loss"))},
                              {"evaluation_losses", losses}};
    add_fields(row, r.figures, kRunFields);
    row.insert(row.end(), {{"step_s", estimate_json(r.figures["step_s"])},
                           {"mfu", number_json(r.value("mfu"))},
                           {"exposed_comm_share", number_json(r.value("exposed_comm_share"))},
                           {"speed", estimate_json(r.speed)},
                           {"verdict", r.verdict},
                           {"efficiency", number_json(r.value("efficiency"))}});
    rows.push_back(fields_json(row));
  }
  return rows;
}

BenchPages run_pages(const std::vector<CaseResult>& results, TableSet set) {
  const BenchTables tables = run_tables(results, set);
  BenchPages pages{.page = "tables.md", .json_file = "results.json"};
  std::size_t runs = 0, failed = 0;
  std::vector<std::string> failures;
  for (const CaseResult& result : results) {
    runs += result.runs;
    failed += result.ran() ? 0 : 1;
    if (!result.failure.empty())
      failures.push_back(fmt::format("{}, {}, {} ranks: {}", result.recipe, result.which.name,
                                     result.which.ranks, result.failure));
  }
  std::string lead = fmt::format("{} cases, {} runs on {}. Figures are medians of the repeats.",
                                 results.size(), runs, device_words(results));
  if (failed > 0) lead += fmt::format(" {} cases have no run that ended well.", failed);
  pages.document = tables_document("Bench", lead, tables.tables,
                                   {{"Failures", failures}, {"Left out", tables.left_out}});
  for (const BenchTable& table : tables.tables)
    pages.files.emplace_back(fmt::format("table-{}.csv", table.file), table_csv(table.table));
  pages.json["results"] = results_json(results);
  return pages;
}

}  // namespace dstrain::bench
