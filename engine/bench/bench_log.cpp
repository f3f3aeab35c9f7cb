#include "engine/bench/bench_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/make_folder.h"
#include "engine/report/run_data.h"

namespace dstrain::bench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPlan = "bench.json";
constexpr const char* kLines = "bench.jsonl";

std::vector<double> numbers(const nlohmann::json& object, const char* key) {
  std::vector<double> all;
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) return all;
  for (const nlohmann::json& value : *found)
    all.push_back(value.is_number() ? value.get<double>() : report::kUnknown);
  return all;
}

}  // namespace

BenchLog::BenchLog(fs::path folder, const BenchPlan& plan, bool resume)
    : folder_(std::move(folder)) {
  make_folder(runs(), "name another one with --output");
  std::error_code error;
  const fs::path plan_file = folder_ / kPlan;
  if (!resume && fs::exists(plan_file, error)) {
    throw Error(ErrorKind::usage, fmt::format("{} holds a bench", folder_.string()),
                "--resume goes on with it; or name another folder with --output");
  }
  write_file_atomically(plan_file, json_text(plan_json(plan), 2) + "\n");
  const fs::path lines = folder_ / kLines;
  if (fs::exists(lines, error)) {
    const std::string text = read_file(lines);
    std::string whole;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = text.find('\n', begin);
      if (end == std::string::npos) break;  // cut off
      const nlohmann::json line = json_or_null(text.substr(begin, end - begin));
      begin = end + 1;
      if (!line.is_object() || report::text(line, "run").empty()) continue;
      keep({.run = report::text(line, "run"),
            .exit_code = line.value("exit_code", 0),
            .reason = report::text(line, "reason"),
            .seconds = report::number(line, "seconds"),
            .fingerprint = report::text(line, "fingerprint"),
            .gpus_before_mib = numbers(line, "gpus_before_mib")});
    }
    // A last line that was cut off would take the next one with it.
    if (!text.empty() && text.back() != '\n')
      write_file_atomically(lines, text.substr(0, text.rfind('\n') + 1));
  }
  file_.open(lines);
}

std::optional<Record> BenchLog::find(const std::string& run) const {
  const auto found = std::ranges::find(records_, run, &Record::run);
  return found == records_.end() ? std::nullopt : std::optional(*found);
}

void BenchLog::add(const Record& record) {
  nlohmann::ordered_json line = {{"run", record.run},
                                 {"exit_code", record.exit_code},
                                 {"reason", record.reason},
                                 {"seconds", record.seconds},
                                 {"fingerprint", record.fingerprint},
                                 {"gpus_before_mib", record.gpus_before_mib}};
  file_.append(json_text(line) + "\n");
  keep(record);
}

void BenchLog::keep(const Record& record) {
  const auto found = std::ranges::find(records_, record.run, &Record::run);
  if (found == records_.end())
    records_.push_back(record);
  else
    *found = record;
}

}  // namespace dstrain::bench
