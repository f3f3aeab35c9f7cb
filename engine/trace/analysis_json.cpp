#include <nlohmann/json.hpp>

#include "engine/trace/analysis.h"

namespace dstrain::trace {
namespace {

using Json = nlohmann::ordered_json;

/// `part` of `whole`; null where there is no whole.
Json ratio(std::int64_t part, std::int64_t whole) {
  if (whole <= 0) return nullptr;
  return static_cast<double>(part) / static_cast<double>(whole);
}

Json json_of(const Breakdown& b) {
  Json types = Json::object();
  for (unsigned bits = 1; bits < 8; ++bits) types[type_set_name(bits)] = b.types[bits];
  return {{"events", b.events},
          {"window_ns", b.window},
          {"busy_ns", b.busy},
          {"idle_ns", b.idle()},
          {"compute_ns", b.compute},
          {"non_compute_ns", b.non_compute()},
          {"communication_ns", b.communication},
          {"memory_ns", b.memory},
          {"gpu_utilisation", ratio(b.busy, b.window)},
          {"overlap_ns", b.overlap},
          {"overlap", ratio(b.overlap, b.communication)},
          {"exposed_communication_ns", b.exposed_communication()},
          {"exposed_communication", ratio(b.exposed_communication(), b.window)},
          {"communication_to_compute", ratio(b.communication, b.compute)},
          {"types_ns", std::move(types)}};
}

Json json_of(const Launches& l) {
  Json queues = Json::array();
  for (const Launches::Queue& queue : l.queues)
    queues.push_back({{"stream", queue.stream}, {"mean", queue.mean}, {"max", queue.max}});
  Json dependencies = Json::array();
  for (const NamedTime& row : l.dependencies)
    dependencies.push_back({{"action", row.name}, {"ns", row.ns}});
  return {{"count", l.count},
          {"unknown", l.without},
          {"negative", l.negative},
          {"call_longer_than_kernel", l.longer_than_kernel},
          {"delay_mean_ns", l.mean},
          {"delay_median_ns", l.median},
          {"delay_p95_ns", l.p95},
          {"delay_max_ns", l.max},
          {"queue_empty_ns", l.host_bound},
          {"gap_host_ns", l.gap_host},
          {"gap_dependency_ns", l.gap_dependency},
          {"gap_other_ns", l.gap_rest},
          {"dependencies", std::move(dependencies)},
          {"queues", std::move(queues)}};
}

Json json_of(const MemoryUse& use) {
  Json steps = Json::array();
  for (const MemoryUse::Step& step : use.steps) {
    steps.push_back({{"step", step.step},
                     {"peak_allocated_bytes", step.peak_allocated},
                     {"peak_reserved_bytes", step.peak_reserved},
                     {"allocations", step.allocations < 0 ? Json(nullptr) : Json(step.allocations)},
                     {"cuda_malloc_calls", step.driver_calls}});
  }
  return {{"peak_allocated_bytes", use.peak_allocated},
          {"peak_reserved_bytes", use.peak_reserved},
          {"peak_action", use.peak_action},
          {"planned_bytes", use.planned < 0 ? Json(nullptr) : Json(use.planned)},
          {"steps", std::move(steps)}};
}

Json json_of(const CriticalPath& path) {
  Json rows = Json::array(), gains = Json::array();
  for (const CriticalPath::Row& row : path.rows)
    rows.push_back({{"kind", row.kind}, {"rank", row.rank}, {"ns", row.ns}});
  for (const CriticalPath::Row& row : path.gains)
    gains.push_back({{"kind", row.kind}, {"ns", row.ns}});
  return {{"length_ns", path.length}, {"rows", std::move(rows)}, {"gains", std::move(gains)}};
}

Json json_of(const RankFigures& rank) {
  Json steps = Json::array();
  for (const auto& [step, b] : rank.steps) {
    Json one = {{"step", step}};
    one.update(json_of(b));
    steps.push_back(std::move(one));
  }
  Json exposed = Json::array();
  for (const NamedTime& row : rank.exposed) exposed.push_back({{"by", row.name}, {"ns", row.ns}});
  Json copies = Json::array();
  for (const CopyRate& row : rank.copies)
    copies.push_back({{"kind", row.name},
                      {"count", row.count},
                      {"bytes", row.bytes},
                      {"ns", row.ns},
                      {"p5_bytes_per_s", row.p5},
                      {"median_bytes_per_s", row.median},
                      {"p95_bytes_per_s", row.p95}});
  Json kinds = Json::array();
  for (const KindTime& row : rank.kinds)
    kinds.push_back({{"lane", row.lane},
                     {"kind", row.kind},
                     {"count", row.count},
                     {"ns", row.ns},
                     {"collectives_ns", row.collectives}});
  return {{"rank", rank.rank},
          {"file", rank.file},
          {"device", rank.cpu ? "cpu" : "cuda"},
          {"breakdown", json_of(rank.all)},
          {"steps", std::move(steps)},
          {"exposed_communication", std::move(exposed)},
          {"launches", rank.launches ? json_of(*rank.launches) : Json(nullptr)},
          {"memory", rank.memory ? json_of(*rank.memory) : Json(nullptr)},
          {"copies", std::move(copies)},
          {"actions", std::move(kinds)}};
}

Json json_of(const KernelRow& row) {
  return {{"type", row.type},    {"name", row.name},
          {"count", row.count},  {"sum_ns", row.sum},
          {"mean_ns", row.mean}, {"min_ns", row.min},
          {"max_ns", row.max},   {"deviation_ns", row.deviation},
          {"p5_ns", row.p5},     {"p25_ns", row.p25},
          {"p75_ns", row.p75},   {"p95_ns", row.p95},
          {"share", row.share},  {"median_ns", row.median},
          {"histogram",
           {{"from_ns", row.histogram.from},
            {"to_ns", row.histogram.to},
            {"counts", row.histogram.counts}}}};
}

Json json_of(const Collectives& all) {
  Json rows = Json::array();
  for (const CollectiveRow& row : all.rows)
    rows.push_back(
        {{"operation", row.operation},
         {"group", row.group},
         {"group_size", row.group_size},
         {"bytes", row.bytes},
         {"count", row.count},
         {"partial", row.partial},
         {"transfer_median_ns", row.median},
         {"transfer_p5_ns", row.p5},
         {"transfer_p95_ns", row.p95},
         {"algorithm_bytes_per_s", row.algorithm_rate ? Json(*row.algorithm_rate) : Json(nullptr)},
         {"bus_bytes_per_s", row.bus_rate ? Json(*row.bus_rate) : Json(nullptr)}});
  Json waits = Json::array();
  for (const RankWait& row : all.waits)
    waits.push_back({{"rank", row.rank}, {"wait_ns", row.wait}, {"transfer_ns", row.transfer}});
  Json stragglers = Json::array();
  for (const Straggler& row : all.stragglers)
    stragglers.push_back({{"rank", row.rank},
                          {"group", row.group},
                          {"instances", row.instances},
                          {"of", row.of},
                          {"blame_ns", row.blame},
                          {"share", row.share},
                          {"cause", row.cause.empty() ? Json(nullptr) : Json(row.cause)}});
  return {{"rows", std::move(rows)},
          {"waits", std::move(waits)},
          {"stragglers", std::move(stragglers)}};
}

}  // namespace

nlohmann::ordered_json to_json(const Analysis& analysis) {
  Json ranks = Json::array(), kernels = Json::array(), rest = Json::array();
  for (const RankFigures& rank : analysis.ranks) ranks.push_back(json_of(rank));
  for (const KernelRow& row : analysis.kernels) kernels.push_back(json_of(row));
  for (const KernelRow& row : analysis.rest) rest.push_back(json_of(row));
  return {{"version", 1},
          {"ranks", std::move(ranks)},
          {"kernels", std::move(kernels)},
          {"other_kernels", std::move(rest)},
          {"collectives", analysis.collectives ? json_of(*analysis.collectives) : Json(nullptr)},
          {"critical_path", analysis.path ? json_of(*analysis.path) : Json(nullptr)},
          {"notes", analysis.notes}};
}

}  // namespace dstrain::trace
