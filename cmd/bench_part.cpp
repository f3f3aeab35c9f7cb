#include "cmd/bench_part.h"

#include <fmt/format.h>

#include <utility>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/output.h"

namespace dstrain {

BenchPart::BenchPart(bench::BenchPlan plan, const std::filesystem::path& folder, bool retry)
    : plan_(std::move(plan)),
      log_(folder, plan_, bench::Existing::keep_runs),
      runner_(plan_, log_,
              {.refusal = [this](const bench::Turn& turn) { return planned(turn.index).refusal; },
               .retry = retry}) {}

const CellPlan& BenchPart::planned(std::size_t index) {
  const auto found = planned_.find(index);
  if (found != planned_.end()) return found->second;
  return planned_.emplace(index, plan_cell(plan_, {.index = index})).first->second;
}

const nlohmann::json& BenchPart::plan_of(std::size_t index, bench::CaseResult& result) {
  const CellPlan& cell = planned(index);
  if (!cell.refusal.empty()) result.failure = cell.refusal;
  return cell.plan;
}

void require_different(std::size_t values, std::size_t different, const char* what) {
  if (values == different) return;
  throw Error(ErrorKind::usage, fmt::format("{} names one of its values twice", what),
              "name each once");
}

void write_bench(const std::filesystem::path& folder, const std::string& name,
                 const report::Document& document, const std::string& csv,
                 const nlohmann::ordered_json& json, const std::string& beside) {
  constexpr std::size_t kColumns = 240;
  const std::filesystem::path page = folder / (name + ".md");
  write_file_atomically(page, report::document_markdown(document));
  write_file_atomically(folder / (name + ".csv"), csv);
  write_file_atomically(folder / (name + ".json"), json_text(json, 2) + "\n");
  print_text(report::document_text(document, kColumns));
  print_text("\ntables: {}, with {}.csv{} and {}.json beside it\n", page.string(), name, beside,
             name);
}

}  // namespace dstrain
