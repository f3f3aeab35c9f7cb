#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/base/json.h"
#include "engine/base/json_path.h"
#include "engine/report/document.h"
#include "engine/report/traced_steps.h"

namespace dstrain::report {
namespace {

using Json = nlohmann::ordered_json;

/// null: not known.
Json known(double value) {
  if (std::isfinite(value)) return value;
  return nullptr;
}

Json estimate_json(const Estimate& estimate) {
  Json json = {{"value", known(estimate.value)}, {"low", nullptr}, {"high", nullptr}};
  if (estimate.interval) {
    json["low"] = known(estimate.interval->low);
    json["high"] = known(estimate.interval->high);
  }
  return json;
}

Json split_json(const RankSplit& split) {
  Json parts = Json::array();
  for (const double part : split.parts) parts.push_back(known(part));
  return {{"rank", split.rank}, {"step_s", known(split.step_s)}, {"parts", parts}};
}

/// The whole analysis, and what the report adds up of it; null without traces.
Json traced_json(const std::optional<TracedSteps>& traced) {
  if (!traced) return nullptr;
  Json json = {{"folder", traced->folder.string()},
               {"first_step", traced->first_step == 0 ? Json(nullptr) : Json(traced->first_step)},
               {"last_step", traced->first_step == 0 ? Json(nullptr) : Json(traced->last_step)}};
  json.update(trace::to_json(traced->analysis));
  json["path_kinds"] = Json::array();
  if (traced->analysis.path) {
    for (const PathKind& row : path_by_kind(*traced->analysis.path))
      json["path_kinds"].push_back({{"kind", row.kind},
                                    {"ns", row.on_path},
                                    {"gain_ns", row.gain < 0 ? Json(nullptr) : Json(row.gain)}});
  }
  json["memory_steps"] = Json::array();
  for (const StepMemory& step : memory_by_step(traced->analysis))
    json["memory_steps"].push_back(
        {{"step", step.step},
         {"rank", step.rank},
         {"allocated_bytes", step.allocated},
         {"reserved_bytes", step.reserved},
         {"planned_bytes", step.planned < 0 ? Json(nullptr) : Json(step.planned)},
         {"cuda_malloc_calls", step.driver_calls}});
  return json;
}

/// null: the run has not come to its first step, or does not say when.
Json goodput_json(const std::optional<Goodput>& goodput) {
  if (!goodput) return nullptr;
  Json json = {{"share", known(goodput->share)},
               {"wall_s", known(goodput->wall_s)},
               {"starts", goodput->starts},
               {"rows", Json::array()},
               {"stops", Json::array()},
               {"between_stops_s", known(goodput->between_s)},
               {"between_stops_low_s", known(goodput->between_low_s)},
               {"between_stops_high_s", known(goodput->between_high_s)},
               {"stopped_twice", goodput->twice},
               {"replicas_compared", goodput->compared},
               {"replicas_differed", goodput->differed}};
  for (const GoodputRow& row : goodput->rows)
    json["rows"].push_back({{"what", row.what},
                            {"seconds", known(row.seconds)},
                            {"share", known(row.seconds / goodput->wall_s)}});
  for (const Stop& stop : goodput->stops)
    json["stops"].push_back({{"time", stop.time},
                             {"class", stop.kind},
                             {"host", stop.host.empty() ? Json(nullptr) : Json(stop.host)},
                             {"rank", stop.rank < 0 ? Json(nullptr) : Json(stop.rank)},
                             {"step", stop.step},
                             {"lost_steps", stop.lost_steps},
                             {"down_s", known(stop.down_s)}});
  return json;
}

Json run_json(const RunFigures& run) {
  const RunData& data = run.data;
  Json json = {{"name", run.label},          {"path", data.path.string()},
               {"sentence", run.sentence},   {"model", text(data.plan, "model")},
               {"ranks", run.ranks},         {"device", run.device},
               {"last_step", run.last_step}, {"steady_steps", run.num_steady}};
  for (const Figure& figure : kFigures) {
    if (!figure.in_report) continue;
    const Estimate& value = run.figures.at(static_cast<std::size_t>(&figure - kFigures));
    json[std::string(figure.key)] = figure.interval ? estimate_json(value)
                                    : figure.unit == Unit::count
                                        ? Json(static_cast<std::int64_t>(value.value))
                                        : known(value.value);
  }
  json.update({{"evaluations", Json::array()},
               {"confused", Json::array()},
               {"part_names", Json::array()},
               {"split", Json::array()},
               {"lost", Json::array()},
               {"advice", Json::array()},
               {"collectives", Json::array()},
               {"gpus", Json::array()},
               {"hosts", Json::array()},
               {"clocks", Json::array()},
               {"goodput", goodput_json(run.goodput)},
               {"traced", traced_json(data.traced)},
               {"missing", data.missing},
               {"problems", Json::array()}});
  put_path(json, "path", data.path);
  for (std::size_t part = 0; part < kParts; ++part) json["part_names"].push_back(part_name(part));
  for (const RankSplit& split : run.split) json["split"].push_back(split_json(split));
  for (const EvaluationRow& row : data.evaluations) {
    json["evaluations"].push_back({{"step", row.step},
                                   {"epoch", known(row.epoch)},
                                   {"training_loss", known(row.training_loss)},
                                   {"loss", known(row.loss)},
                                   {"accuracy", known(row.accuracy)},
                                   {"top5", known(row.top5)},
                                   {"ema_loss", known(row.ema_loss)},
                                   {"ema_accuracy", known(row.ema_accuracy)},
                                   {"exact_match", known(row.exact_match)},
                                   {"f1", known(row.f1)},
                                   {"right_answers", known(row.right_answers)},
                                   {"seconds", known(row.seconds)},
                                   {"samples_per_s", known(row.samples_per_s)}});
    if (!std::isfinite(row.rewards_margins)) continue;  // no pairs of answers
    json["evaluations"].back().update({{"rewards_chosen", known(row.rewards_chosen)},
                                       {"rewards_rejected", known(row.rewards_rejected)},
                                       {"rewards_margins", known(row.rewards_margins)},
                                       {"logps_chosen", known(row.logps_chosen)},
                                       {"logps_rejected", known(row.logps_rejected)}});
  }
  if (data.confusion) {
    for (const ConfusedPair& pair : most_confused(*data.confusion, kConfusedShown))
      json["confused"].push_back({{"class", data.confusion->names[pair.right]},
                                  {"taken_for", data.confusion->names[pair.predicted]},
                                  {"images", pair.count}});
  }
  for (const LostTime& lost : run.lost)
    json["lost"].push_back(
        {{"what", lost.what}, {"seconds", known(lost.seconds)}, {"share", known(lost.share)}});
  for (const Advice& advice : run.advice)
    json["advice"].push_back({{"id", advice.id},
                              {"finding", advice.finding},
                              {"change", advice.change},
                              {"share", known(advice.share)},
                              {"overrides", advice.overrides},
                              {"predicted_change", known(advice.predicted_change)}});
  for (const CollectiveRow& row : run.collectives)
    json["collectives"].push_back(
        {{"name", row.name}, {"calls", known(row.calls)}, {"bytes", known(row.bytes)}});
  for (const GpuSummary& gpu : run.gpus)
    json["gpus"].push_back({{"index", gpu.index},
                            {"name", gpu.name},
                            {"samples", gpu.samples},
                            {"peak_mib", known(gpu.peak_mib)},
                            {"total_mib", known(gpu.total_mib)},
                            {"mean_utilization", known(gpu.mean_utilization)},
                            {"max_temperature", known(gpu.max_temperature)},
                            {"mean_power_w", known(gpu.mean_power_w)},
                            {"throttled", known(gpu.throttled)}});
  for (const HostFigures& host : run.hosts)
    json["hosts"].push_back({{"host", host.host},
                             {"samples", host.samples},
                             {"cpu_mean_percent", known(host.cpu_mean)},
                             {"cpu_peak_percent", known(host.cpu_peak)},
                             {"memory_mean_mib", known(host.memory_mean_mib)},
                             {"memory_peak_mib", known(host.memory_peak_mib)},
                             {"gpu_peak_mib", known(host.gpu_peak_mib)}});
  for (const ClockOffset& clock : data.clocks)
    json["clocks"].push_back({{"host", clock.host},
                              {"t_ns", known(clock.t_ns)},
                              {"offset_ns", known(clock.offset_ns)},
                              {"bound_ns", known(clock.bound_ns)}});
  for (const Problem& problem : data.problems)
    json["problems"].push_back({{"file", problem.file}, {"what", problem.what}});
  return json;
}

}  // namespace

std::string report_json(const Report& report) {
  Json json = {{"runs", Json::array()},
               {"variants", Json::array()},
               {"differences", Json::array()},
               {"warnings", report.warnings}};
  for (const RunFigures& run : report.runs) json["runs"].push_back(run_json(run));
  for (const Variant& variant : report.variants) {
    Json names = Json::array();
    for (const std::size_t run : variant.runs) names.push_back(report.runs[run].label);
    json["variants"].push_back(
        {{"name", variant.name},
         {"runs", names},
         {"samples_per_s", known(variant.samples_per_s)},
         {"speed", known(variant.speed.value)},
         {"speed_interval", estimate_json(variant.speed)},
         {"loss_parity", variant.parity.known ? Json(variant.parity.holds) : Json(nullptr)},
         {"loss", known(variant.parity.variant)},
         {"baseline_loss", known(variant.parity.base)},
         {"verdict", variant.verdict}});
  }
  for (const SettingDifference& difference : report.differences)
    json["differences"].push_back({{"key", difference.key}, {"values", difference.values}});
  return json_text(json, 2) + "\n";
}

}  // namespace dstrain::report
