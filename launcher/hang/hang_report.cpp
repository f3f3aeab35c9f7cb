#include "launcher/hang/hang_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>

#include "engine/base/error.h"
#include "engine/base/json.h"
#include "engine/base/units.h"
#include "launcher/base/words.h"

namespace dstrain::launcher {
namespace {

constexpr std::size_t kMaxGroups = 6;
constexpr std::size_t kMaxRootLines = 40;
constexpr std::size_t kMaxOtherLines = 16;

using Ranks = std::vector<const RankState*>;

bool is_overdue(const RankState& state) {
  return state.limit_ns > 0 && state.stalled_ns >= state.limit_ns;
}

double stalled_s(const RankState& state) { return static_cast<double>(state.stalled_ns) * 1e-9; }

std::vector<int> numbers(const Ranks& ranks) {
  std::vector<int> result;
  for (const RankState* state : ranks) result.push_back(state->rank);
  return result;
}

/// "rank 3", "ranks 0, 2-7".
std::string name(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fold_ranks(ranks));
}

template <class Predicate>
Ranks select(const Ranks& ranks, Predicate&& predicate) {
  Ranks chosen;
  std::ranges::copy_if(ranks, std::back_inserter(chosen),
                       [&](const RankState* state) { return predicate(*state); });
  return chosen;
}

/// The main thread's frames alone, by which stacks of different ranks are the same.
std::string place_of(const RankState& state) {
  std::string place;
  std::istringstream lines(state.stack);
  for (std::string line; std::getline(lines, line) && !line.starts_with("-- ");) {
    if (!line.starts_with("[kernel]")) place += line + "\n";
  }
  return place.empty() ? state.action : place;
}

/// Those ranks whose `key` nearly all others do not share: fewer than half have it, and no other
/// key is as rare. Nothing when there is no such group.
template <class Key>
Ranks odd_ones(const Ranks& ranks, Key&& key) {
  std::map<std::string, Ranks> groups;
  for (const RankState* state : ranks) groups[key(*state)].push_back(state);
  if (groups.size() < 2) return {};
  const auto smaller = [](const auto& a, const auto& b) {
    return a.second.size() < b.second.size();
  };
  const auto rarest = std::ranges::min_element(groups, smaller);
  const auto as_rare = std::ranges::count_if(
      groups, [&](const auto& group) { return group.second.size() == rarest->second.size(); });
  if (as_rare > 1 || 2 * rarest->second.size() >= ranks.size()) return {};
  return rarest->second;
}

struct Blame {
  HangCause cause = HangCause::everybody;
  Ranks ranks;
};

Blame find_blame(const Ranks& all, bool some_silent) {
  using enum HangCause;
  const auto in_state = [](char wanted) {
    return [wanted](const RankState& state) { return state.process_state == wanted; };
  };
  if (Ranks halted = select(all, in_state('T')); !halted.empty())
    return {stopped, std::move(halted)};

  const auto min_of = [](const Ranks& ranks) {
    return (*std::ranges::min_element(ranks, {}, &RankState::collectives))->collectives;
  };
  const Ranks running = select(all, [](const RankState& s) { return s.process_state != 'X'; });
  const Ranks waiting = select(running, [](const RankState& s) { return s.in_collective; });
  const Ranks gone = select(all, in_state('X'));
  if (running.empty()) return {everybody, all};
  const std::int64_t min = min_of(running);
  // A rank that is done has made as many calls as the others will have.
  if (!gone.empty() && (waiting.size() == running.size() || min_of(gone) < min)) {
    return {ended, gone};
  }

  const auto is_min = [min](const RankState& s) { return s.collectives == min; };
  Ranks last = select(running, is_min);
  const Ranks last_outside = select(last, [](const RankState& s) { return !s.in_collective; });
  if (last.size() < running.size()) {
    // Ranks in no collective, of those that came least far, hold up those that are in one.
    return {behind, last_outside.empty() ? last : last_outside};
  }
  if (!last_outside.empty() && last_outside.size() < last.size()) {
    // Equal numbers: those inside entered a call that the ones outside have left already, or the
    // ones outside are where no call should be missed. Either way it is those inside who wait.
    return {outside, last_outside};
  }
  if (last_outside.empty()) {
    const auto call = [](const RankState& s) { return s.collective; };
    if (Ranks odd = odd_ones(running, call); !odd.empty()) return {other_call, odd};
  }
  const Ranks held = select(running, in_state('D'));
  if (!held.empty() && held.size() < running.size()) return {uninterruptible, held};
  if (some_silent) return {silent, {}};
  const bool all_known =
      std::ranges::none_of(running, [](const RankState* s) { return s->stack.empty(); });
  if (!last_outside.empty() && all_known) {
    if (Ranks odd = odd_ones(running, place_of); !odd.empty()) return {other_place, odd};
  }
  return {everybody, running};
}

std::string why(const HangReport& report, const Ranks& others) {
  const RankState& root = report.root;
  const std::string those = others.empty() ? "" : name(numbers(others));
  const char* wait = others.size() == 1 ? "waits" : "wait";
  // The call that most of the others are in.
  std::map<std::string, int> calls;
  for (const RankState* state : others) {
    if (state->in_collective) ++calls[describe_collective(*state)];
  }
  const auto max =
      std::ranges::max_element(calls, {}, [](const auto& call) { return call.second; });
  const std::string waiting = those.empty() ? ""
                              : calls.empty()
                                  ? fmt::format("; {} {} for it", those, wait)
                                  : fmt::format("; {} {} in {}", those, wait, max->first);
  switch (report.cause) {
    using enum HangCause;
    case stopped:
      return "its process is stopped (state T): somebody sent SIGSTOP, or a debugger holds it" +
             waiting;
    case ended:
      return "it has ended with exit code 0" + waiting;
    case behind:
      return root.in_collective
                 ? fmt::format("it is still in {}{}", describe_collective(root), waiting)
                 : fmt::format("it has entered {} collectives{}", root.collectives, waiting);
    case other_call:
      return fmt::format("it is in {}{}", describe_collective(root), waiting);
    case outside:
      return "it is in no collective" + waiting;
    case uninterruptible:
      return "the kernel holds it (state D), most likely for a disk or a network file system" +
             waiting;
    case silent:
      return "its node did not say where it is" + waiting;
    case other_place:
      return "it is in another place than the others, and nobody is in a collective";
    case everybody:
      if (root.in_collective) {
        return fmt::format("all of {} are in {}: the network between them, or one of their devices",
                           name(report.blamed), describe_collective(root));
      }
      return report.blamed.size() == 1 ? "" : "all ranks are in the same place";
  }
  return "";
}

std::string place_phrase(const RankState& state) {
  std::string text;
  if (state.step >= 0) text += fmt::format(" at step {}", state.step);
  if (!state.action.empty()) text += fmt::format(" in {}", state.action);
  return text;
}

std::string summarize(const HangReport& report, const Ranks& others) {
  const RankState& root = report.root;
  std::string text = fmt::format("rank {}", root.rank);
  if (!root.host.empty()) text += fmt::format(" on {}", root.host);
  if (report.blamed.size() > 1) {
    std::vector<int> rest = report.blamed;
    std::erase(rest, root.rank);
    text += fmt::format(" (and {})", name(rest));
  }
  text += fmt::format(" hangs{}", place_phrase(root));
  if (root.stalled_ns > 0) {
    text += fmt::format(": no progress for {}", format_duration(stalled_s(root)));
    if (root.limit_ns > 0) {
      text += fmt::format(" (limit of {}: {})", root.section.empty() ? "it" : root.section,
                          format_duration(static_cast<double>(root.limit_ns) * 1e-9));
    }
  }
  const std::string reason = why(report, others);
  return reason.empty() ? text : text + "; " + reason;
}

/// Ranks with equal stacks; those of the blamed first, then larger groups before smaller ones.
std::vector<Ranks> group_stacks(const Ranks& all, const std::set<int>& blamed, int root) {
  std::map<std::pair<bool, std::string>, Ranks> groups;
  for (const RankState* state : all) {
    groups[{blamed.contains(state->rank), place_of(*state)}].push_back(state);
  }
  std::vector<Ranks> sorted;
  for (auto& [key, ranks] : groups) sorted.push_back(std::move(ranks));
  const auto order = [&](const Ranks& ranks) {
    const bool has_root =
        std::ranges::any_of(ranks, [root](const RankState* s) { return s->rank == root; });
    const int first = ranks.front()->rank;
    return std::tuple(!has_root, !blamed.contains(first), -std::ssize(ranks), first);
  };
  std::ranges::sort(sorted, {}, order);
  return sorted;
}

const RankState& representative(const Ranks& group, int root) {
  const auto found =
      std::ranges::find_if(group, [root](const RankState* s) { return s->rank == root; });
  return found == group.end() ? *group.front() : **found;
}

std::string title(const Ranks& group) {
  std::string text = name(numbers(group));
  const RankState& first = *group.front();
  const auto all_share = [&](auto&& value) {
    return std::ranges::all_of(group,
                               [&](const RankState* s) { return value(*s) == value(first); });
  };
  if (first.process_state == 'X') return text + ": ended with exit code 0";
  if (all_share([](const RankState& s) { return std::pair(s.step, s.action); })) {
    text += place_phrase(first);
  }
  if (first.in_collective && all_share(describe_collective)) {
    text += ", in " + describe_collective(first);
  }
  return text + ":";
}

std::string stacks_text(const std::vector<Ranks>& groups, int root) {
  std::string text;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (i == kMaxGroups) {
      text += fmt::format("  {} more groups of ranks: see failure.json\n", groups.size() - i);
      break;
    }
    text += fmt::format("  {}\n", title(groups[i]));
    const std::string& stack = representative(groups[i], root).stack;
    if (stack.empty() && representative(groups[i], root).process_state != 'X') {
      text += "    (no stack came in time)\n";
    }
    std::istringstream lines(stack);
    std::size_t count = 0;
    for (std::string line; std::getline(lines, line);) {
      // Threads beside the main one matter where the fault is.
      if (i > 0 && line.starts_with("-- ")) break;
      if (++count > (i == 0 ? kMaxRootLines : kMaxOtherLines)) {
        text += "    ...\n";
        break;
      }
      text += fmt::format("    {}\n", line);
    }
  }
  return text;
}

std::string to_json(const std::vector<Ranks>& groups, int root) {
  auto json = nlohmann::ordered_json::array();
  for (const Ranks& group : groups) {
    nlohmann::ordered_json entry;
    entry["ranks"] = numbers(group);
    entry["stack"] = nlohmann::ordered_json::array();
    std::istringstream lines(representative(group, root).stack);
    for (std::string line; std::getline(lines, line);) entry["stack"].push_back(line);
    entry["states"] = nlohmann::ordered_json::array();
    for (const RankState* state : group) {
      entry["states"].push_back(
          {{"rank", state->rank},
           {"host", state->host},
           {"pid", state->pid},
           {"process_state", std::string(1, state->process_state)},
           {"section", state->section},
           {"step", state->step >= 0 ? nlohmann::ordered_json(state->step) : nullptr},
           {"action", state->action},
           {"collectives", state->collectives},
           {"in_collective", state->in_collective},
           {"collective", state->collective},
           {"stalled_s", stalled_s(*state)},
           {"limit_s", static_cast<double>(state->limit_ns) * 1e-9}});
    }
    json.push_back(std::move(entry));
  }
  return json_text(json, 2);
}

}  // namespace

std::string describe_collective(const RankState& state) {
  if (state.collectives == 0) return {};
  return fmt::format("collective {}, {}", state.collectives, state.collective);
}

HangReport diagnose_hang(std::vector<RankState> states, int world_size) {
  DSTRAIN_CHECK(!states.empty(), "a hang needs at least one rank's state");
  std::ranges::sort(states, {}, &RankState::rank);
  Ranks all;
  std::set<int> answered;
  for (const RankState& state : states) {
    all.push_back(&state);
    answered.insert(state.rank);
  }
  std::vector<int> missing;
  for (int rank = 0; rank < world_size; ++rank) {
    if (!answered.contains(rank)) missing.push_back(rank);
  }

  const Blame blame = find_blame(all, !missing.empty());
  HangReport report;
  report.cause = blame.cause;
  if (blame.cause == HangCause::silent) {
    report.blamed = missing;
    report.root.rank = missing.front();
  } else {
    report.blamed = numbers(blame.ranks);
    report.root = **std::ranges::max_element(blame.ranks, {}, &RankState::stalled_ns);
  }
  const std::set<int> blamed(report.blamed.begin(), report.blamed.end());
  const auto is_blamed = [&](const RankState& state) { return blamed.contains(state.rank); };

  // Who is stopped, gone or silent makes no progress any more; any other may be at something long.
  using enum HangCause;
  const bool for_good = blame.cause == stopped || blame.cause == ended || blame.cause == silent;
  report.hung = std::ranges::any_of(states, [&](const RankState& state) {
    return is_overdue(state) && (for_good || is_blamed(state));
  });
  report.summary =
      summarize(report, select(all, [&](const RankState& state) { return !is_blamed(state); }));
  const std::vector<Ranks> groups = group_stacks(all, blamed, report.root.rank);
  report.stacks = stacks_text(groups, report.root.rank);
  if (!missing.empty()) report.stacks += fmt::format("  {}: no answer\n", name(missing));
  report.stacks_json = to_json(groups, report.root.rank);
  return report;
}

}  // namespace dstrain::launcher
