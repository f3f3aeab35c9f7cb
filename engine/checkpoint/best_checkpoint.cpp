#include "engine/checkpoint/best_checkpoint.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/run_layout.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/recipe/best_metric.h"
#include "engine/recipe/choices.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
constexpr const char* kFile = "best.json";

/// The file's content; nothing where it is missing or broken.
std::optional<nlohmann::json> read(const fs::path& run) {
  const fs::path file = run / kFile;
  if (!path_exists(file)) return std::nullopt;
  try {
    return parse_json(read_file(file), file.string());
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

bool BestRecord::add(std::int64_t step, double value) {
  evaluations_.push_back({step, value});
  const double gain =
      !best_ ? 0 : is_lower_better(config_.metric) ? best_->value - value : value - best_->value;
  const bool better = std::isfinite(value) && (!best_ || gain > config_.min_delta);
  if (better) best_ = Evaluation{step, value};
  without_gain_ = better ? 0 : without_gain_ + 1;
  return better;
}

std::string BestRecord::text() const {
  if (!best_) return "none";
  return fmt::format("{} {:.6g} at step {}", spelling(config_.metric), best_->value, best_->step);
}

void BestRecord::take(const fs::path& run, std::int64_t step) {
  const auto json = read(run);
  if (!json) return;
  try {
    if (json->at("metric") != spelling(config_.metric)) return;
    for (const nlohmann::json& one : json->at("evaluations")) {
      const auto at = one.at(0).get<std::int64_t>();
      if (at > step) break;
      add(at, one.at(1).is_number() ? one.at(1).get<double>() : std::nan(""));
    }
  } catch (const nlohmann::json::exception&) {
    *this = BestRecord(config_);
  }
}

void BestRecord::write(const fs::path& run) const {
  nlohmann::json evaluations = nlohmann::json::array();
  for (const Evaluation& one : evaluations_)
    evaluations.push_back({one.step, std::isfinite(one.value) ? nlohmann::json(one.value)
                                                              : nlohmann::json()});
  nlohmann::ordered_json json = {{"metric", spelling(config_.metric)}, {"load", config_.load}};
  if (best_) {
    json["step"] = best_->step;
    json["value"] = best_->value;
    json["text"] = text();
  }
  json["without_gain"] = without_gain_;
  json["evaluations"] = evaluations;
  write_file_atomically(run / kFile, json_text(json) + "\n");
}

std::optional<BestStep> best_step(const fs::path& checkpoints) {
  const auto json = read(checkpoints.parent_path());
  if (!json) return std::nullopt;
  const auto step = json->find("step");
  if (step == json->end() || !step->is_number_integer()) return std::nullopt;
  const auto load = json->find("load"), text = json->find("text");
  return BestStep{.step = step->get<std::int64_t>(),
                  .load = load == json->end() || *load != false,
                  .text = text != json->end() && text->is_string() ? text->get<std::string>() : ""};
}

std::filesystem::path checkpoint_in(const std::filesystem::path& source) {
  if (parse_checkpoint_name(source)) return source;
  std::vector<std::string> problems;
  const std::filesystem::path folder = find_checkpoints_folder(source);
  if (const auto best = best_step(folder); best && best->load) {
    for (const CheckpointInfo& one : list_checkpoints(folder, /*full=*/false)) {
      if (one.step != best->step) continue;
      const CheckpointInfo whole = inspect_checkpoint(one.path, /*full=*/true);
      if (whole.valid) return whole.path;
      log_warning("the best checkpoint is passed over: {}", whole.problem);
    }
  }
  const auto newest = newest_valid(folder, problems);
  if (!newest) {
    throw Error(ErrorKind::checkpoint,
                fmt::format("{} holds no valid checkpoint{}", source.string(),
                            problems.empty() ? "" : ": " + problems.front()),
                "look with `dstrain checkpoint list`");
  }
  return newest->path;
}

}  // namespace dstrain
