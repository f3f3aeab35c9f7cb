#include "engine/report/goodput.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>
#include <limits>
#include <map>

#include "engine/base/median.h"
#include "engine/report/statistics.h"

namespace dstrain::report {
namespace {

/// One start of the job, to its end. Times are seconds since 1970.
struct Start {
  double begin = 0;
  double end = 0;
  double trains = kUnknown;      ///< end of its first step
  std::int64_t first_step = -1;  ///< steps done before it; -1: it never came to load them
  std::int64_t last_step = -1;   ///< steps done at its end; -1: not known
  double save_s = 0;             ///< that training waited for saves
  bool over = false;             ///< its end was written down
  std::optional<Stop> stop = {};
};

double time_of(const std::string& text) {
  std::tm time{};
  const char* end = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &time);
  if (end == nullptr || *end != '\0') return kUnknown;
  return static_cast<double>(::timegm(&time));
}

/// A number, or one that stands in a text; 0 where it is neither or no time.
double seconds_of(const nlohmann::json& value) {
  constexpr double kMax = 1e9;
  double seconds = 0;
  if (value.is_number()) {
    seconds = value.get<double>();
  } else if (value.is_string()) {
    const auto& digits = value.get_ref<const std::string&>();
    std::from_chars(digits.data(), digits.data() + digits.size(), seconds);
  }
  return seconds > 0 && seconds < kMax ? seconds : 0;
}

/// From the start of rank 0's program to the end of its first step.
double seconds_to_first_step(const nlohmann::json& parts) {
  double sum = 0;
  if (!parts.is_object()) return sum;
  for (const auto& [name, value] : parts.items()) {
    if (name != "step" && name != "time" && name != "kind") sum += seconds_of(value);
  }
  return sum;
}

/// Reads events in their order.
class Starts {
 public:
  void add(const Event& event) {
    const double time = time_of(event.time);
    if (!std::isfinite(time)) return;
    if (event.kind == "launched") {
      open(time, event);
    } else if (event.kind == "started" || event.kind == "resumed") {
      if (starts_.empty() || starts_.back().over || starts_.back().first_step >= 0)
        open(time, event);
      Start& start = starts_.back();
      start.first_step = event.step;
      start.last_step = event.step;
    } else if (starts_.empty() || starts_.back().over) {
      return;
    } else if (event.kind == "first_step") {
      Start& start = starts_.back();
      start.trains = time;
      if (!launched_)
        start.begin = std::min(start.begin, time - seconds_to_first_step(event.fields));
    } else if (event.kind.starts_with("checkpoint") && event.fields.is_object()) {
      if (const auto stall = event.fields.find("stall_s"); stall != event.fields.end())
        starts_.back().save_s += seconds_of(*stall);
      starts_.back().last_step = std::max(starts_.back().last_step, event.step);
    } else if (event.kind == "finished" || event.kind == "stopped" || event.kind == "failed" ||
               event.kind == "ended") {
      Start& start = starts_.back();
      start.over = true;
      start.last_step = std::max(start.last_step, event.step);
      if (event.kind == "failed") {
        const double rank = number(event.fields, "rank");
        start.stop = Stop{.time = event.time,
                          .kind = text(event.fields, "failure"),
                          .host = text(event.fields, "host"),
                          .rank = rank >= 0 && rank < 1e9 ? static_cast<int>(rank) : -1,
                          .step = event.step};
      }
    }
    starts_.back().end = std::max(starts_.back().end, time);
  }

  [[nodiscard]] std::vector<Start> take() && { return std::move(starts_); }

 private:
  void open(double time, const Event& event) {
    launched_ = event.kind == "launched";
    if (!starts_.empty() && !starts_.back().over) {
      Start& before = starts_.back();
      before.over = true;
      if (before.first_step >= 0)
        before.stop = Stop{.time = event.time,
                           .kind = "no word of its end",
                           .host = {},
                           .step = std::max<std::int64_t>(before.last_step, 0)};
    }
    starts_.push_back({.begin = time, .end = time});
  }

  std::vector<Start> starts_;
  bool launched_ = false;  ///< the last one, by a launcher that says so
};

/// Steps up to which each start's work was kept: no later one went back behind them.
std::vector<std::int64_t> kept_up_to(const std::vector<Start>& starts) {
  std::vector<std::int64_t> kept(starts.size());
  std::int64_t min = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = starts.size(); i-- > 0;) {
    kept[i] = min;
    if (starts[i].first_step >= 0) min = std::min(min, starts[i].first_step);
  }
  return kept;
}

/// The value below which `share` of the chi-squared distribution lie, by Wilson and Hilferty 1931;
/// `z` is that of the normal distribution.
double chi_squared(double degrees, double z) {
  const double part = 2 / (9 * degrees);
  return degrees * std::pow(1 - part + z * std::sqrt(part), 3);
}

void count_stops(Goodput& goodput, double running_s) {
  const auto count = static_cast<double>(goodput.stops.size());
  std::map<std::string, int> hosts;
  for (const Stop& stop : goodput.stops) {
    if (!stop.host.empty() && ++hosts[stop.host] == 2) goodput.twice.push_back(stop.host);
  }
  if (count == 0 || running_s <= 0) return;
  constexpr double kZ = 1.644854;  // 5 % lie beyond
  goodput.between_s = running_s / count;
  goodput.between_low_s = 2 * running_s / chi_squared(2 * count + 2, kZ);
  goodput.between_high_s = 2 * running_s / chi_squared(2 * count, -kZ);
}

template <class Row, class Value>
double sum_between(const std::vector<Row>& rows, std::int64_t after, std::int64_t last,
                   const Value& value) {
  double sum = 0;
  auto row = std::upper_bound(rows.begin(), rows.end(), after,
                              [](std::int64_t step, const Row& r) { return step < r.step; });
  for (; row != rows.end() && row->step <= last; ++row) {
    const double seconds = value(*row);
    if (seconds > 0 && std::isfinite(seconds)) sum += seconds;
  }
  return sum;
}

}  // namespace

std::optional<Goodput> goodput_of(const RunData& run) {
  Starts reader;
  for (const Event& event : run.events) reader.add(event);
  std::vector<Start> starts = std::move(reader).take();
  if (std::ranges::none_of(starts, [](const Start& start) { return std::isfinite(start.trains); }))
    return std::nullopt;

  std::vector<double> step_times;
  for (const StepRow& row : run.steps) {
    if (row.step_s > 0 && std::isfinite(row.step_s)) step_times.push_back(row.step_s);
  }
  const double usual = step_times.empty() ? 0 : median(step_times);
  const std::vector<std::int64_t> kept = kept_up_to(starts);
  double counted = 0, again = 0, starting = 0, saves = 0, evaluation = 0, down = 0, other = 0;
  double running = 0;
  Goodput goodput;
  for (const Event& event : run.events) {
    if (event.kind == "replicas_differ") ++goodput.differed;
    if (event.kind.starts_with("replicas_")) ++goodput.compared;
  }
  for (std::size_t i = 0; i < starts.size(); ++i) {
    Start& start = starts[i];
    const bool trained = std::isfinite(start.trains);
    const std::int64_t last = start.last_step < 0
                                  ? kept[i]
                                  : std::min(kept[i], std::max(start.last_step, start.first_step));
    const auto step_s = [](const StepRow& row) { return row.step_s; };
    // A run that goes on, or that left no word, has come as far as its lines say.
    const std::int64_t reach = start.over && !start.stop ? last : kept[i];
    const double steps_s = trained ? sum_between(run.steps, start.first_step, reach, step_s) : 0;
    const double first_s =
        trained ? sum_between(run.steps, start.first_step, start.first_step + 1, step_s) : 0;
    if (!start.over && trained) start.end = std::max(start.end, start.trains + steps_s - first_s);
    const double wall = start.end - start.begin;
    double rest = wall;
    const auto take = [&rest](double& sum, double seconds) {
      const double taken = std::clamp(seconds, 0.0, std::max(rest, 0.0));
      sum += taken;
      rest -= taken;
    };
    take(counted, steps_s);
    take(starting, trained ? start.trains - start.begin - first_s : wall);
    take(saves, start.save_s);
    if (trained)
      take(evaluation, sum_between(run.evaluations, start.first_step, reach,
                                   [](const EvaluationRow& row) { return row.seconds; }));
    const std::int64_t lost =
        trained ? std::max<std::int64_t>(0, start.last_step - std::max(kept[i], start.first_step))
                : 0;
    take(again, static_cast<double>(lost) * usual);
    other += rest;
    running += wall;
    goodput.starts += trained ? 1 : 0;
    const bool followed = i + 1 < starts.size();
    if (followed) down += std::max(0.0, starts[i + 1].begin - start.end);
    if (!start.stop) continue;
    start.stop->lost_steps = lost;
    for (std::size_t k = i + 1; k < starts.size() && !std::isfinite(start.stop->down_s); ++k) {
      if (std::isfinite(starts[k].trains)) start.stop->down_s = starts[k].trains - start.end;
    }
    goodput.stops.push_back(*start.stop);
  }
  goodput.rows = {{"steps that count", counted},
                  {"steps done again", again},
                  {"starts", starting},
                  {"saves", saves},
                  {"evaluation", evaluation},
                  {"down", down},
                  {"other", other}};
  for (const GoodputRow& row : goodput.rows) goodput.wall_s += row.seconds;
  if (goodput.wall_s <= 0) return std::nullopt;
  goodput.share = counted / goodput.wall_s;
  count_stops(goodput, running);
  return goodput;
}

}  // namespace dstrain::report
