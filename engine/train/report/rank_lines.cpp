#include "engine/train/report/rank_lines.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/base/clock.h"
#include "engine/base/host_memory.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/metrics/metrics.h"
#include "engine/samples/share.h"

namespace dstrain {
namespace {

constexpr int kMaxFailures = 3;

}  // namespace

RankLines::RankLines(const std::filesystem::path& path, std::int64_t resumed_step,
                     const World& world, const Communicators& communicators)
    : world_(world), communicators_(communicators) {
  try {
    truncate_metrics(path, resumed_step);
    file_.open(path);
  } catch (const std::exception& error) {
    failed_writes_ = kMaxFailures;
    log_warning("no times of steps: {}", error.what());
  }
}

void RankLines::step(const StepOutcome& outcome, const HostTimes& host, bool traced) {
  if (!outcome.times || failed_writes_ >= kMaxFailures) return;
  if (!writes_line(world_.rank, world_.size, timed_++)) return;
  try {
    file_.append(line(outcome, host, traced));
  } catch (const std::exception& error) {
    if (++failed_writes_ == kMaxFailures)
      log_warning("no further times of steps: {}", error.what());
  }
}

std::string RankLines::line(const StepOutcome& outcome, const HostTimes& host, bool traced) {
  const StepTimes& times = *outcome.times;
  nlohmann::ordered_json json;
  json["step"] = outcome.step + 1;
  // The step's end has just been waited for.
  json["start_ns"] = system_time_ns() - static_cast<std::int64_t>(outcome.step_s * 1e9);
  json["step_s"] = outcome.step_s;
  for (const Phase phase : {Phase::forward, Phase::backward, Phase::norm, Phase::update})
    json[fmt::format("{}_s", phase_name(phase))] = times.of(phase);
  json["data_wait_s"] = host.data_wait_s;
  json["host_s"] = host.work_s;
  json["wait_s"] = {
      {"gather", times.wait(Lane::gather)},
      {"reduce", times.wait(Lane::reduce)},
      {"receive", times.wait(Lane::receive_down) + times.wait(Lane::receive_up)},
      {"send", times.wait(Lane::send_down) + times.wait(Lane::send_up)},
      {"copy_in", times.wait(Lane::copy_in)},
  };
  json["waits_in_s"] = {{"norm", times.waits_in(Phase::norm)},
                        {"update", times.waits_in(Phase::update)}};
  json["lane_s"] = nlohmann::ordered_json::object();
  for (int lane = 0; lane < kNumLanes; ++lane) {
    const double seconds = times.lane_s.at(static_cast<std::size_t>(lane));
    if (seconds > 0) json["lane_s"][lane_name(static_cast<Lane>(lane))] = seconds;
  }
  json["exposed_comm_s"] = times.exposed_comm_s;
  const MemoryFigures memory = allocator_figures(world_.device.device);
  json["allocated"] = memory.allocated;
  json["reserved"] = memory.reserved;
  json["peak"] = memory.allocated_peak;
  json["host_rss"] = host_resident_bytes();
  json["calls"] = nlohmann::ordered_json::object();
  for (const auto& [channel, communicator] : communicators_) {
    for (const CallCount& count : communicator->counts()) {
      const std::string name = fmt::format("{} {}-{}", count.operation,
                                           comm_axis_name(channel.axis), lane_name(channel.lane));
      auto& [calls, bytes] = called_[name];
      if (count.calls > calls) json["calls"][name] = {count.calls - calls, count.bytes - bytes};
      calls = count.calls;
      bytes = count.bytes;
    }
  }
  json["traced"] = traced;
  return json_text(json) + "\n";
}

}  // namespace dstrain
