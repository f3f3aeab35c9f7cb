#include "engine/train/session/evaluate.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/job_environment.h"
#include "engine/base/json.h"
#include "engine/base/run_layout.h"
#include "engine/base/units.h"
#include "engine/checkpoint/base_weights.h"
#include "engine/checkpoint/best_checkpoint.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/recipe/phases.h"
#include "engine/train/report/evaluation_files.h"
#include "engine/train/report/preparation_notes.h"
#include "engine/train/report/run_report.h"
#include "engine/train/session/session.h"

namespace dstrain {
namespace {

nlohmann::ordered_json to_json(const EvaluationTotals& totals, bool language) {
  const auto number = [](double value) {
    return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json();
  };
  nlohmann::ordered_json json = {{"loss", number(totals.loss)}, {"accuracy", number(totals.top1)}};
  if (totals.pairs) {
    json["rewards/chosen"] = number(totals.pairs->rewards_chosen);
    json["rewards/rejected"] = number(totals.pairs->rewards_rejected);
    json["rewards/margins"] = number(totals.pairs->margin());
    json["logps/chosen"] = number(totals.pairs->logps_chosen);
    json["logps/rejected"] = number(totals.pairs->logps_rejected);
  } else if (language)
    json["perplexity"] = number(std::exp(totals.loss));
  else
    json["top5"] = number(totals.top5);
  json["targets"] = static_cast<std::int64_t>(totals.targets);
  return json;
}

}  // namespace

void evaluate_finished(const LoadedRecipe& loaded, const World& world, const std::string& source,
                       RankRecordFile& record) {
  Recipe recipe = loaded.recipe;
  recipe.run.generate = 0;
  if (recipe.run.evaluate.is_never()) recipe.run.evaluate = Interval{};
  std::unique_ptr<CheckpointReader> reader;
  std::string what = "the recipe's weights";
  int phase = 0;
  if (source != "-") {
    record.enter(-1, "look for the checkpoint");
    const std::filesystem::path path = checkpoint_in(source);
    reader = CheckpointReader::open(path, /*verify=*/false);
    phase = reader->state().phase;
    what = path.string();
    if (world.rank == 0)
      check_base(path, reader->state().base, base_reference(phase_recipe(recipe, phase)));
  }
  const std::unique_ptr<Progress> progress = make_progress(world.rank);
  PreparationNotes preparation(*progress, record);
  Session session(recipe, world, record, &preparation, phase);
  if (reader) {
    const SectionScope section(record, RankSection::checkpoint);
    record.enter(-1, "read the checkpoint");
    session.states().restore(*reader);
  }
  for (const std::string& note : session.notes()) progress->note(note);
  const SectionScope section(record, RankSection::evaluate);
  record.enter(-1, "evaluate");
  const auto begin = std::chrono::steady_clock::now();
  const EvaluationTotals totals = session.evaluate();
  const std::optional<EvaluationTotals> average = session.evaluate_average();
  const double seconds = seconds_since(begin);
  if (world.rank != 0) return;
  const bool language = session.model().is_language();
  progress->note(fmt::format("{}: {} in {}", what, describe_evaluation(totals, language),
                             format_duration(seconds)));
  if (average)
    progress->note("  average of the weights: " + describe_evaluation(*average, language));
  auto members = nlohmann::ordered_json::object();
  const EvaluationTotals& best = average ? *average : totals;
  for (std::size_t i = 0; i < best.members.size(); ++i) {
    const std::string& name = session.mixture()->members()[i].name;
    progress->note("  " + name + ": " + describe_evaluation(best.members[i], language));
    members[name] = to_json(best.members[i], language);
  }
  nlohmann::ordered_json json = {{"of", what}};
  if (reader) json["step"] = reader->state().step;
  json["samples"] = session.test_size();
  json["ranks"] = world.size;
  json["seconds"] = seconds;
  json.update(to_json(totals, language));
  if (average) json["average"] = to_json(*average, language);
  if (!members.empty()) json["members"] = std::move(members);
  const std::optional<report::Confusion> confusion =
      confusion_of(average ? *average : totals, session.model());
  if (confusion) {
    constexpr std::size_t kShown = 5;
    for (const std::string& line : report::worst_classes(*confusion, kShown))
      progress->note("  class " + line);
  }
  const char* folder = std::getenv(job_environment::kRunDirectory);
  if (folder == nullptr) return;
  const RunLayout layout{std::filesystem::path(folder)};
  std::string others;
  if (confusion) {
    write_confusion(layout.root(), *confusion);
    nlohmann::ordered_json& counted = average ? json["average"] : json;
    for (const std::filesystem::path& file : {layout.confusion(), layout.classes()}) {
      counted[file.stem().string()] = file.filename().string();
      others += ", " + file.filename().string();
    }
  }
  const std::filesystem::path file = layout.root() / "evaluation.json";
  write_file_atomically(file, json_text(json, 2) + "\n");
  progress->note("written: " + file.string() + others);
}

}  // namespace dstrain
