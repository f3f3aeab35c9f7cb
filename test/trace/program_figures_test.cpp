/// Figures that need the actions of the program: waits, memory by action, critical path, causes.
#include <fmt/format.h>

#include <map>
#include <numeric>
#include <random>

#include "engine/trace/analysis.h"
#include "engine/trace/critical_path.h"
#include "engine/trace/figures.h"
#include "test/support/catch.h"
#include "test/support/files.h"
#include "test/support/temp_dir.h"
#include "test/trace/made_trace.h"

namespace dstrain::trace {
namespace {

using dstrain::test::MadeTrace;
using dstrain::test::spit;
using dstrain::test::TempDir;

ActionInfo action(const std::string& kind, const std::string& block, const std::string& lane,
                  std::vector<int> after = {}, std::vector<int> after_previous = {}) {
  return {.name = kind + "(" + block + ")",
          .kind = kind,
          .lane = lane,
          .phase = "forward",
          .block = block,
          .after = std::move(after),
          .after_previous = std::move(after_previous)};
}

/// A rank whose events are one for each run; lanes are streams.
class MadeRank {
 public:
  MadeRank(int rank, std::vector<ActionInfo> program) {
    events_.rank = rank;
    events_.launches = true;
    for (ActionInfo& info : program) {
      streams_.try_emplace(info.lane, static_cast<std::uint16_t>(streams_.size()));
      events_.actions[info.name] = info;
    }
    for (std::size_t i = 0; i < streams_.size(); ++i)
      events_.streams.push_back(static_cast<std::int64_t>(i));
    events_.program = std::move(program);
  }
  void run(int step, int number, std::int64_t start, std::int64_t end, std::int64_t launched) {
    const std::uint16_t stream =
        streams_.at(events_.program.at(static_cast<std::size_t>(number)).lane);
    events_.runs.push_back({.step = step,
                            .action = static_cast<std::uint32_t>(number),
                            .stream = stream,
                            .start_ns = start,
                            .end_ns = end,
                            .launch_end_ns = launched});
    GpuEvent event;
    event.start_ns = start;
    event.duration_ns = end - start;
    event.launch_end_ns = launched;
    event.step = step;
    event.stream = stream;
    events_.events.push_back(event);
  }
  RankEvents& events() { return events_; }

 private:
  RankEvents events_;
  std::map<std::string, std::uint16_t> streams_;
};

Collective meet(Names& names, int rank, int action, std::int64_t sequence, std::int64_t start,
                std::int64_t end) {
  Collective one;
  one.rank = rank;
  one.step = 4;
  one.operation = names.add("all_reduce");
  one.group = names.add("0 [0, 1]");
  one.group_size = 2;
  one.sequence = sequence;
  one.bytes = 1024;
  one.start_ns = start;
  one.duration_ns = end - start;
  one.action = action;
  return one;
}

std::int64_t sum_of(const std::vector<CriticalPath::Row>& rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0},
                         [](std::int64_t sum, const auto& row) { return sum + row.ns; });
}

std::int64_t time_of(const std::vector<CriticalPath::Row>& rows, const std::string& kind,
                     int rank = -1) {
  for (const CriticalPath::Row& row : rows)
    if (row.kind == kind && row.rank == rank) return row.ns;
  return 0;
}

/// Compute 0 to 100, a gather from 50 to 180, then a block that needs it, launched at `launched`.
MadeRank gather_then_forward(std::int64_t launched) {
  MadeRank rank(0, {action("forward", "a", "compute"), action("gather", "b", "gather"),
                    action("forward", "b", "compute", {1})});
  rank.run(4, 0, 0, 100, -10);
  rank.run(4, 1, 50, 180, 20);
  rank.run(4, 2, 200, 300, launched);
  return rank;
}

}  // namespace

TEST_CASE("a gap behind the launch belongs to the action that it waits for, until that one ends") {
  MadeRank early = gather_then_forward(30);
  const auto found = launches(early.events());
  REQUIRE(found);
  CHECK(found->gap_host == 0);
  CHECK(found->gap_dependency == 80);
  CHECK(found->gap_rest == 20);
  REQUIRE(found->dependencies.size() == 1);
  CHECK(found->dependencies[0].name == "gather(b)");
  CHECK(found->dependencies[0].ns == 80);

  MadeRank late = gather_then_forward(150);
  const auto host = launches(late.events());
  CHECK(host->gap_host == 50);
  CHECK(host->gap_dependency == 30);
  CHECK(host->gap_rest == 20);
}

TEST_CASE("actions are added up by lane and kind, with their own collectives") {
  MadeRank rank = gather_then_forward(30);
  rank.run(5, 2, 400, 450, 390);
  Names names;
  rank.events().collectives = {meet(names, 0, 1, 0, 60, 170), meet(names, 0, 2, 1, 210, 230),
                               meet(names, 0, -1, 2, 0, 5)};
  const std::vector<KindTime> kinds = kind_times(rank.events());
  REQUIRE(kinds.size() == 2);
  CHECK(kinds[0].lane == "compute");
  CHECK(kinds[0].kind == "forward");
  CHECK(kinds[0].count == 3);
  CHECK(kinds[0].ns == 250);
  CHECK(kinds[0].collectives == 20);
  CHECK(kinds[1].lane == "gather");
  CHECK(kinds[1].ns == 130);
  CHECK(kinds[1].collectives == 110);
  CHECK(kind_times(RankEvents()).empty());
}

TEST_CASE("an action without work stands for the one before it on its lane, in its own step") {
  MadeRank rank(
      0, {action("gather", "a", "gather"), action("gather", "empty", "gather"),
          action("forward", "a", "compute", {1}, {3}), action("update", "a", "compute", {})});
  rank.run(4, 0, 0, 10, -5);
  rank.run(4, 2, 20, 30, -5);
  rank.run(4, 3, 30, 40, -5);
  rank.run(5, 2, 60, 70, -5);
  const ActionRuns runs(rank.events());
  REQUIRE(runs.runs().size() == 4);
  CHECK(runs.predecessors(1) == std::vector<std::size_t>{0});
  CHECK(runs.last_of_other_lanes(1) == std::optional<std::size_t>(0));
  // Step 5 has no gather: what is not traced is not waited for.
  CHECK(runs.predecessors(3) == std::vector<std::size_t>{2, 2});
  CHECK_FALSE(runs.last_of_other_lanes(3));
  CHECK(runs.find(4, 1) == std::optional<std::size_t>(0));
  CHECK_FALSE(runs.find(5, 1));
  CHECK_FALSE(runs.find(4, 17));
}

TEST_CASE("peaks of memory are found with their action, step by step") {
  Names names;
  RankEvents rank;
  CHECK_FALSE(memory_use(rank, names));
  rank.planned_bytes = 900;
  rank.memory = {
      {.at_ns = 1, .allocated = 500, .reserved = 800, .step = 4, .action = names.add("forward(a)")},
      {.at_ns = 2, .allocated = 700, .reserved = 800, .step = 4, .action = names.add("norm")},
      {.at_ns = 3, .allocated = 600, .reserved = 1000, .step = 5, .action = names.add("update")}};
  rank.driver_allocations = {{5, 2}};
  auto use = memory_use(rank, names);
  REQUIRE(use);
  CHECK(use->peak_allocated == 700);
  CHECK(use->peak_reserved == 1000);
  CHECK(use->peak_action == "norm");
  CHECK(use->planned == 900);
  REQUIRE(use->steps.size() == 2);
  CHECK(use->steps[0].step == 4);
  CHECK(use->steps[0].peak_allocated == 700);
  CHECK(use->steps[0].allocations == -1);
  CHECK(use->steps[0].driver_calls == 0);
  CHECK(use->steps[1].peak_allocated == 600);
  CHECK(use->steps[1].driver_calls == 2);
  // Single allocations are counted where the trace has them.
  rank.memory[0].allocation = true;
  use = memory_use(rank, names);
  CHECK(use->steps[0].allocations == 1);
  CHECK(use->steps[1].allocations == 0);
}

TEST_CASE("kernels are communication by the names of NCCL, RCCL, MSCCL and NVSHMEM") {
  const TempDir dir;
  MadeTrace made(0);
  const std::vector<std::string> communicate = {
      "ncclKernel_AllReduce_RING_LL_Sum_float",
      "void ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
      "rcclGenericKernel",
      "void rcclGenericKernel<1, false>(rcclArgs)",
      "mscclKernel_Sum_half_LL128",
      "nvshmem_barrier_on_stream_kernel",
      "void nvshmemi_put_block<float>(float*)"};
  const std::vector<std::string> compute = {"gemm", "void at::native::reduce_kernel<512, 1>()",
                                            "my_nccl_like"};
  int id = 0;
  for (const auto& names : {communicate, compute})
    for (const std::string& name : names) {
      ++id;
      made.kernel(name, 7, 1000 * id, 500, id);
    }
  spit(dir / "rank0_trace.json", made.text());
  const Analysis analysis = analyze({dir / "rank0_trace.json"}, {});
  std::map<std::string, std::size_t> count;
  for (const KernelRow& row : analysis.kernels) ++count[row.type];
  CHECK(count == std::map<std::string, std::size_t>{{"communication", communicate.size()},
                                                    {"compute", compute.size()}});
  CHECK(analysis.notes.empty());
}

TEST_CASE("a negative duration is 0, and said with its place") {
  const TempDir dir;
  MadeTrace made(3, 1);
  made.kernel("whole", 7, 1000, 500, 1);
  made.kernel("set_back", 7, 5000, -400, 2);
  const std::string text = made.text();
  spit(dir / "rank3_trace.json", text);
  const Analysis analysis = analyze({dir / "rank3_trace.json"}, {});
  CHECK(analysis.ranks.at(0).all.busy == 500);
  CHECK(analysis.ranks.at(0).all.window == 4000);
  REQUIRE(analysis.notes.size() == 1);
  CHECK(analysis.notes[0] ==
        fmt::format("rank 3: 1 event of {} has a negative \"dur\", the first at byte {}: counted "
                    "and drawn as if 0",
                    (dir / "rank3_trace.json").string(),
                    text.rfind('{', text.find("set_back"))));
}

TEST_CASE("a launch belongs to the innermost region around it and to the outermost step") {
  const TempDir dir;
  MadeTrace made(0);
  made.slice("user_annotation", "ProfilerStep#4", "1", "1", 0, 100'000);
  made.slice("user_annotation", "outer", "1", "1", 1000, 90'000);
  made.slice("user_annotation", "crosses", "1", "1", 20'000, 60'000);
  made.slice("user_annotation", "ProfilerStep#5", "1", "1", 30'000, 200'000);
  made.slice("user_annotation", "short", "1", "1", 40'000, 10'000);
  // Launched 5 us before.
  const std::vector<std::pair<std::int64_t, std::string>> at = {
      {10'000, "outer"}, {50'000, "short"}, {60'000, "crosses"}, {90'000, "outer"}};
  for (std::size_t i = 0; i < at.size(); ++i)
    made.kernel("k", 7, at[i].first, 100, static_cast<std::int64_t>(i) + 1);
  made.kernel("k", 7, 110'000, 100, 9);
  spit(dir / "rank0_trace.json", made.text());
  Names names;
  const std::vector<RankEvents> ranks = load_events(dir / "rank0_trace.json", names, false);
  REQUIRE(ranks.at(0).events.size() == 5);
  for (std::size_t i = 0; i < at.size(); ++i) {
    CAPTURE(i);
    CHECK(names[ranks[0].events[i].action] == at[i].second);
    CHECK(ranks[0].events[i].step == 4);
  }
  CHECK(ranks[0].events[4].step == 5);
  CHECK(names[ranks[0].events[4].action].empty());
}

TEST_CASE("memory, cudaMalloc and the plan are read from a trace and the file beside it",
          "[trace]") {
  const TempDir dir;
  MadeTrace made(0);
  for (const int step : {4, 5}) {
    const std::int64_t at = 1'000'000 * (step - 4);
    made.slice("user_annotation", fmt::format("ProfilerStep#{}", step), "1", "1", at, 1'000'000);
    made.slice("user_annotation", "forward(a)", "1", "1", at + 100'000, 300'000);
    made.slice("user_annotation", "backward(a)", "1", "1", at + 400'000, 300'000);
    made.kernel("k", 7, at + 200'000, 50'000, 10 * step, fmt::format("\"step\": {}", step));
    const auto counter = [&](const char* name, std::int64_t when, int value) {
      made.add(fmt::format(R"({{"ph": "C", "name": "{}", "pid": 1000, "tid": 0, "ts": {}, )"
                           R"("args": {{"value": {}}}}})",
                           name, test::as_us(when), value));
    };
    counter("memory allocated", at + 400'000, 1000 * step);
    counter("memory reserved", at + 400'000, 9000);
    counter("memory allocated", at + 700'000, 1000 * step - 1);
  }
  made.slice("cuda_runtime", "cudaMalloc", "1", "1", 1'450'000, 1000);
  made.slice("cuda_runtime", "cudaMallocHost", "1", "1", 1'460'000, 1000);
  spit(dir / "rank0_trace.json", made.text());
  spit(dir / "rank0_actions.json",
       R"x({"actions": [{"name": "forward(a)", "kind": "forward", "lane": "compute"}],)x"
       R"x( "memory": {"planned": 7777}})x");
  const Analysis found = analyze({dir.path()}, {});
  REQUIRE(found.ranks.size() == 1);
  REQUIRE(found.ranks[0].memory);
  const MemoryUse& use = *found.ranks[0].memory;
  CHECK(use.planned == 7777);
  CHECK(use.peak_allocated == 5000);
  CHECK(use.peak_reserved == 9000);
  CHECK(use.peak_action == "forward(a)");
  REQUIRE(use.steps.size() == 2);
  CHECK(use.steps[0].driver_calls == 0);
  CHECK(use.steps[1].driver_calls == 1);
  // Kernels have no "action": no run, no path; the allocator's growth in a late step is said.
  CHECK_FALSE(found.path);
  const Analysis one = analyze({dir.path()}, {.first_step = 4, .last_step = 4});
  CHECK(one.ranks[0].memory->peak_allocated == 4000);
}

TEST_CASE("the critical path of a rank adds up, and a hidden gather costs nothing") {
  Names names;
  const CriticalPath path = critical_path({gather_then_forward(30).events()}, {}, names);
  CHECK(path.length == 300);
  CHECK(sum_of(path.rows) == 300);
  CHECK(time_of(path.rows, "forward", 0) == 100);
  CHECK(time_of(path.rows, "gather", 0) == 130);
  // The gather waits for nothing: until 20 it is not launched.
  CHECK(time_of(path.rows, CriticalPath::kHost, 0) == 20);
  CHECK(time_of(path.rows, CriticalPath::kRest, 0) == 50);
  // Without the gather the second block begins 20 behind the first one.
  CHECK(time_of(path.gains, "gather") == 80);

  // Launched late: the host is on the path, and a gather of no time would only uncover it.
  const CriticalPath late = critical_path({gather_then_forward(190).events()}, {}, names);
  CHECK(late.length == 300);
  CHECK(sum_of(late.rows) == 300);
  CHECK(time_of(late.rows, CriticalPath::kHost, 0) == 190);
  CHECK(time_of(late.rows, CriticalPath::kRest, 0) == 10);
  // With launches in no time the gather begins 30 behind the first launch, at -10, and ends at 150.
  CHECK(time_of(late.gains, CriticalPath::kHost) == 40);
  CHECK(time_of(late.gains, "gather") == 0);
}

TEST_CASE("what the host leaves idle inside an action is the host's") {
  Names names;
  MadeRank rank(0, {action("forward", "a", "compute"), action("forward", "b", "compute")});
  rank.run(4, 0, 0, 100, -10);
  rank.run(4, 1, 100, 200, 50);
  rank.events().runs[1].host_gap_ns = 60;
  const CriticalPath path = critical_path({rank.events()}, {}, names);
  CHECK(path.length == 200);
  CHECK(time_of(path.rows, "forward", 0) == 140);
  CHECK(time_of(path.rows, CriticalPath::kHost, 0) == 60);
  // The second one is not launched before 50.
  CHECK(time_of(path.gains, "forward") == 90);
  CHECK(time_of(path.gains, CriticalPath::kHost) == 60);
}

TEST_CASE("the critical path goes to the rank that came last to a collective") {
  Names names;
  std::vector<RankEvents> ranks;
  const std::vector<ActionInfo> program = {action("backward", "a", "compute"),
                                           action("reduce", "a", "reduce", {0}),
                                           action("update", "a", "compute", {1})};
  // Rank 1 computes until 300, rank 0 until 100; the reduction itself takes 50.
  const std::vector<Collective> all = {meet(names, 0, 1, 0, 100, 350),
                                       meet(names, 1, 1, 0, 300, 350)};
  for (const int number : {0, 1}) {
    MadeRank rank(number, program);
    const std::int64_t ready = number == 0 ? 100 : 300;
    rank.run(4, 0, 0, ready, -10);
    rank.run(4, 1, ready, 350, -10);
    rank.run(4, 2, 350, number == 0 ? 400 : 390, -10);
    ranks.push_back(std::move(rank.events()));
  }
  const CriticalPath path = critical_path(ranks, all, names);
  CHECK(path.length == 400);
  CHECK(sum_of(path.rows) == 400);
  CHECK(time_of(path.rows, "backward", 1) == 300);
  CHECK(time_of(path.rows, "backward", 0) == 0);
  CHECK(time_of(path.rows, "reduce", 0) == 50);
  CHECK(time_of(path.rows, "update", 0) == 50);
  CHECK(time_of(path.gains, "backward") == 300);
  CHECK(time_of(path.gains, "reduce") == 50);
  CHECK(time_of(path.gains, "update") == 50);
  CHECK(time_of(path.gains, CriticalPath::kHost) == 0);
}

TEST_CASE("the rows of any critical path add up to its length, and no gain exceeds it") {
  std::mt19937_64 random(7);
  const auto below = [&](int limit) {
    return static_cast<int>(random() % static_cast<unsigned>(limit));
  };
  for (int round = 0; round < 300; ++round) {
    Names names;
    std::vector<RankEvents> ranks;
    std::vector<Collective> all;
    for (int number = 0; number < 2; ++number) {
      std::vector<ActionInfo> program;
      for (int i = 0; i < 8; ++i) {
        const bool reduce = i % 3 == 2;
        program.push_back(action(reduce ? "reduce" : "forward", std::to_string(i),
                                 reduce ? "reduce" : "compute",
                                 i > 0 ? std::vector<int>{below(i)} : std::vector<int>{}));
      }
      MadeRank rank(number, program);
      std::map<std::string, std::int64_t> free;
      for (int i = 0; i < 8; ++i) {
        const std::string lane = i % 3 == 2 ? "reduce" : "compute";
        const std::int64_t start = std::max<std::int64_t>(free[lane], 10 * i) + below(30);
        free[lane] = start + below(60);
        rank.run(4, i, start, free[lane], start - below(40));
        if (lane == "reduce") all.push_back(meet(names, number, i, i / 3, start, free[lane]));
      }
      ranks.push_back(std::move(rank.events()));
    }
    const CriticalPath path = critical_path(ranks, all, names);
    CHECK(sum_of(path.rows) == path.length);
    for (const CriticalPath::Row& row : path.rows) CHECK(row.ns > 0);
    for (const CriticalPath::Row& row : path.gains) {
      CAPTURE(round, row.kind);
      CHECK(row.ns > 0);
      CHECK(row.ns <= path.length);
    }
  }
}

TEST_CASE("the cause of a straggler is what it did longer than the others") {
  struct Row {
    const char* cause;
    std::int64_t compute, launch_gap, load;  ///< of the slow rank, before each collective
  };
  const Row row =
      GENERATE(Row{"compute", 300, 10, 0}, Row{"launch", 100, 210, 0}, Row{"data", 100, 10, 200});
  CAPTURE(row.cause);
  Names names;
  std::map<int, LaneTime> lanes;
  std::vector<Collective> all;
  const std::vector<ActionInfo> program = {action("load", "", "copy_in"),
                                           action("backward", "a", "compute", {0}),
                                           action("reduce", "a", "reduce", {1})};
  for (const int number : {0, 1}) {
    MadeRank rank(number, program);
    const bool slow = number == 1;
    const std::int64_t compute = slow ? row.compute : 100, gap = slow ? row.launch_gap : 10;
    const std::int64_t load = slow ? row.load : 0;
    for (int step = 4; step < 10; ++step) {
      const std::int64_t begin = 1000 * step;
      // The lane waits for what the host launches, then for the copy of the samples.
      rank.run(step, 0, begin, begin + gap + load, begin);
      const std::int64_t start = begin + gap + load;
      rank.run(step, 1, start, start + compute, begin + gap);
      rank.run(step, 2, start + compute, begin + 400, begin + gap);
      all.push_back(meet(names, number, 2, step, start + compute, begin + 400));
    }
    lanes[number] = compute_lane_time(rank.events(), ActionRuns(rank.events()));
  }
  const Collectives found = collectives(all, names, 6000, lanes);
  REQUIRE(found.stragglers.size() == 1);
  CHECK(found.stragglers[0].rank == 1);
  CHECK(found.stragglers[0].cause == row.cause);
  // Without programs no cause is known.
  CHECK(collectives(all, names, 6000).stragglers[0].cause.empty());
}

}  // namespace dstrain::trace
