#include "launcher/hang/hang_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "launcher/base/plan_file.h"
#include "launcher/hang/kernel_state.h"

namespace dstrain::launcher {
namespace {

/// The controller waits a few seconds longer than this for the states.
constexpr std::chrono::milliseconds kStackLimit{5000};
constexpr std::chrono::seconds kPacePeriod{3};

std::int64_t nanoseconds(double seconds) {
  return std::isfinite(seconds) ? static_cast<std::int64_t>(seconds * 1e9) : 0;
}

/// The rank may be writing it.
template <std::size_t N>
std::string text_of(const std::array<char, N>& text) {
  return {text.data(), ::strnlen(text.data(), N)};
}

}  // namespace

RankState HangWatch::state_of(const WatchedRank& rank) const {
  const RankRecord& record = *rank.record;
  const RankSection section = record.section.load();
  RankState state;
  state.rank = rank.rank;
  state.host = host_;
  state.pid = rank.pid;
  state.step = record.step.load();
  state.action = text_of(record.action);
  state.section = name_of(section);
  state.progress = record.progress.load();
  state.stalled_ns = nanoseconds(stalls_.stalled_s(rank.rank));
  state.limit_ns = nanoseconds(stalls_.limit_s(section, state.progress > 0));
  state.collectives = record.collectives.load();
  state.in_collective = state.collectives > record.collectives_left.load() && !rank.ended;
  state.collective = text_of(record.collective);
  state.process_state = rank.ended ? 'X' : process_state(rank.pid);
  return state;
}

void HangWatch::ask(Clock::time_point now, std::span<const WatchedRank> ranks) {
  if (asked_) return;
  asked_ = true;
  next_look_ = now;
  for (const WatchedRank& rank : ranks) {
    if (!rank.ended) takers_.try_emplace(rank.rank, rank.pid, kStackLimit);
  }
}

void HangWatch::advance(Clock::time_point now, std::span<const WatchedRank> ranks,
                        Channel& channel) {
  if (now >= next_look_) {
    next_look_ = now + stalls_.period();
    take_plan(ranks, channel);
    std::vector<RankProgress> running;
    for (const WatchedRank& rank : ranks) {
      if (rank.ended) continue;
      running.push_back({rank.rank, rank.record->section.load(), rank.record->progress.load()});
    }
    for (const Stall& stall : stalls_.look(now, running)) {
      const auto* rank = &*std::ranges::find(ranks, stall.rank, &WatchedRank::rank);
      channel.send(StalledRank{state_of(*rank)});
    }
  }
  if (now >= next_pace_) {
    next_pace_ = now + kPacePeriod;
    send_pace(ranks, channel);
  }
  if (!asked_) return;
  bool complete = true;
  for (auto& [number, taker] : takers_) complete = taker.advance(now) && complete;
  if (!complete) return;
  for (const WatchedRank& rank : ranks) {
    RankState state = state_of(rank);
    if (const auto taker = takers_.find(rank.rank); taker != takers_.end() && !rank.ended) {
      state.stack = taker->second.text();
      // As it was before anything was stopped to be looked at.
      state.process_state = taker->second.state();
    }
    channel.send(state);
  }
  channel.send(StatesEnd{});
  takers_.clear();
  asked_ = false;
}

/// Once the plan is written; the agent of rank 0 tells what follows from it.
void HangWatch::take_plan(std::span<const WatchedRank> ranks, Channel& channel) {
  // Before the first step the plan of an earlier start may still lie there.
  const bool stepping = std::ranges::any_of(ranks, [](const WatchedRank& rank) {
    return rank.record->section.load() == RankSection::step;
  });
  if (planned_ || !stepping) return;
  const double step_s = read_plan(run_directory_).step_s;
  if (step_s <= 0) return;
  planned_ = true;
  stalls_.plan_step(step_s);
  if (ranks.front().rank != 0) return;
  const double limit_s = stalls_.limit_s(RankSection::step);
  channel.send(
      ReportLine{std::isfinite(limit_s)
                     ? fmt::format("a rank that makes no progress in a step for {:.0f} s hangs "
                                   "(--hang-timeout changes that)",
                                   limit_s)
                     : "ranks that hang are not looked for (--hang-timeout off)"});
}

void HangWatch::send_pace(std::span<const WatchedRank> ranks, Channel& channel) {
  PaceMessage message;
  std::int64_t steps = 0;
  for (const WatchedRank& rank : ranks) {
    if (rank.ended) continue;
    RankPace pace{.rank = rank.rank, .stage = rank.record->stage.load()};
    pace.steps = rank.record->steps.load();
    pace.steps_ns = rank.record->steps_ns.load();
    pace.waited_ns = rank.record->steps_waited_ns.load();
    steps += pace.steps;
    message.ranks.push_back(pace);
  }
  if (steps == paced_steps_) return;
  paced_steps_ = steps;
  channel.send(message);
}

void HangWatch::add_polls(std::vector<pollfd>& fds) const {
  for (const auto& [rank, taker] : takers_) {
    if (taker.fd() >= 0) fds.push_back({taker.fd(), POLLIN, 0});
  }
}

HangWatch::Clock::time_point HangWatch::deadline() const {
  Clock::time_point first = std::min(next_look_, next_pace_);
  for (const auto& [rank, taker] : takers_) {
    if (taker.fd() >= 0) first = std::min(first, taker.deadline());
  }
  return first;
}

}  // namespace dstrain::launcher
