#include "engine/trace/figures.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "engine/trace/intervals.h"
#include "test/support/catch.h"

namespace dstrain::trace {
namespace {

using Bitmap = std::vector<unsigned>;

GpuEvent made(std::int64_t start, std::int64_t duration, EventType type, std::uint16_t stream = 0) {
  GpuEvent event;
  event.start_ns = start;
  event.duration_ns = duration;
  event.type = type;
  event.stream = stream;
  return event;
}

unsigned bit(EventType type) { return 1U << static_cast<unsigned>(type); }

std::vector<GpuEvent> random_events(std::mt19937_64& random, std::int64_t range) {
  std::vector<GpuEvent> events;
  const auto count = 1 + random() % 40;
  for (std::uint64_t i = 0; i < count; ++i)
    events.push_back(made(
        static_cast<std::int64_t>(random() % 300) % range, static_cast<std::int64_t>(random() % 30),
        static_cast<EventType>(random() % 3), static_cast<std::uint16_t>(random() % 3)));
  return events;
}

/// One entry a nanosecond: the types that run in it.
Bitmap bitmap(const std::vector<GpuEvent>& events) {
  Bitmap map(400, 0);
  for (const GpuEvent& event : events)
    for (std::int64_t t = event.start_ns; t < event.end_ns(); ++t)
      map[static_cast<std::size_t>(t)] |= bit(event.type);
  return map;
}

TEST_CASE("sets of intervals agree with bitmaps") {
  std::mt19937_64 random(1);
  for (int round = 0; round < 500; ++round) {
    std::vector<Interval> sides[2];
    Bitmap maps[2] = {Bitmap(400, 0), Bitmap(400, 0)};
    for (int side = 0; side < 2; ++side)
      for (std::uint64_t i = 0; i < random() % 20; ++i) {
        const auto begin = static_cast<std::int64_t>(random() % 300);
        const auto end = begin + static_cast<std::int64_t>(random() % 40) - 5;
        sides[side].push_back({begin, end});
        for (std::int64_t t = begin; t < end; ++t) maps[side][static_cast<std::size_t>(t)] = 1;
      }
    const IntervalSet a = united(sides[0]), b = united(sides[1]);
    std::int64_t in_a = 0, both = 0, only_a = 0;
    for (std::size_t t = 0; t < 400; ++t) {
      in_a += maps[0][t];
      both += maps[0][t] & maps[1][t];
      only_a += maps[0][t] & ~maps[1][t];
    }
    REQUIRE(length(a) == in_a);
    REQUIRE(length(intersected(a, b)) == both);
    REQUIRE(length(subtracted(a, b)) == only_a);
    for (std::size_t i = 1; i < a.size(); ++i) REQUIRE(a[i - 1].end < a[i].begin);
  }
}

TEST_CASE("a breakdown agrees with a bitmap, in any order of events") {
  std::mt19937_64 random(2);
  for (int round = 0; round < 500; ++round) {
    std::vector<GpuEvent> events = random_events(random, 300);
    const Bitmap map = bitmap(events);
    std::int64_t first = 1000, last = 0;
    for (const GpuEvent& e : events) {
      first = std::min(first, e.start_ns);
      last = std::max(last, e.end_ns());
    }
    const auto count = [&](auto&& has) {
      return static_cast<std::int64_t>(std::count_if(map.begin(), map.end(), has));
    };
    const Breakdown b = breakdown(events);
    CHECK(b.window == last - first);
    CHECK(b.busy == count([](unsigned m) { return m != 0; }));
    CHECK(b.compute == count([](unsigned m) { return (m & 1) != 0; }));
    CHECK(b.communication == count([](unsigned m) { return (m & 2) != 0; }));
    CHECK(b.overlap == count([](unsigned m) { return (m & 3) == 3; }));
    CHECK(b.exposed_communication() == count([](unsigned m) { return (m & 3) == 2; }));
    for (unsigned types = 1; types < 8; ++types)
      CHECK(b.types[types] == count([&](unsigned m) { return m == types; }));
    CHECK(b.compute + b.non_compute() + b.idle() == b.window);

    const auto exposed =
        exposed_by_label(events, [](const GpuEvent& e) { return std::to_string(e.stream); });
    std::int64_t sum = 0;
    for (const NamedTime& row : exposed) sum += row.ns;
    CHECK(sum == b.exposed_communication());

    std::shuffle(events.begin(), events.end(), random);
    const Breakdown again = breakdown(events);
    CHECK(again.types == b.types);
    CHECK(again.window == b.window);
    const auto exposed_again =
        exposed_by_label(events, [](const GpuEvent& e) { return std::to_string(e.stream); });
    REQUIRE(exposed_again.size() == exposed.size());
    for (std::size_t i = 0; i < exposed.size(); ++i) {
      CHECK(exposed_again[i].name == exposed[i].name);
      CHECK(exposed_again[i].ns == exposed[i].ns);
    }
  }
}

TEST_CASE("an overlap of one nanosecond is one nanosecond") {
  const Breakdown b = breakdown({made(0, 1'000'000'001, EventType::compute),
                                 made(1'000'000'000, 500, EventType::communication)});
  CHECK(b.overlap == 1);
  CHECK(b.exposed_communication() == 499);
  CHECK(b.types[kCompute] == 1'000'000'000);
  CHECK(breakdown({}).window == 0);
}

TEST_CASE("the table of kernels adds up, whatever the order") {
  std::mt19937_64 random(3);
  Names names;
  std::vector<GpuEvent> events;
  for (int i = 0; i < 500; ++i) {
    GpuEvent e = made(0, static_cast<std::int64_t>(random() % 100'000), EventType::compute);
    e.name = names.add("kernel " + std::to_string(random() % 25));
    events.push_back(e);
  }
  const EventLabel label = [&](const GpuEvent& e) { return names[e.name]; };
  KernelTable table;
  table.add(events, label);
  std::vector<KernelRow> rest;
  const auto rows = table.rows(10, rest);
  REQUIRE(rows.size() == 10);
  REQUIRE(rest.size() == 1);
  std::int64_t sum = 0;
  for (const KernelRow& row : rows) {
    sum += row.sum;
    std::vector<double> of_name;
    for (const GpuEvent& e : events)
      if (names[e.name] == row.name) of_name.push_back(static_cast<double>(e.duration_ns));
    const double mean =
        std::accumulate(of_name.begin(), of_name.end(), 0.0) / static_cast<double>(of_name.size());
    double squares = 0;
    for (const double ns : of_name) squares += (ns - mean) * (ns - mean);
    CHECK(row.count == static_cast<std::int64_t>(of_name.size()));
    CHECK(row.mean == Approx(mean));
    CHECK(row.deviation == Approx(std::sqrt(squares / static_cast<double>(of_name.size() - 1))));
    CHECK(static_cast<double>(row.min) == *std::min_element(of_name.begin(), of_name.end()));
    CHECK(static_cast<double>(row.max) == *std::max_element(of_name.begin(), of_name.end()));
  }
  std::int64_t whole = 0;
  for (const GpuEvent& e : events) whole += e.duration_ns;
  CHECK(sum + rest.front().sum == whole);

  std::shuffle(events.begin(), events.end(), random);
  KernelTable other;
  other.add(events, label);
  std::vector<KernelRow> other_rest;
  const auto again = other.rows(10, other_rest);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CHECK(again[i].name == rows[i].name);
    CHECK(again[i].deviation == rows[i].deviation);
  }
}

Collective collective(Names& names, int rank, std::int64_t sequence, std::int64_t start,
                      std::int64_t duration) {
  Collective one;
  one.rank = rank;
  one.operation = names.add("all_reduce");
  one.group = names.add("0 [0, 1, 2, 3]");
  one.group_size = 4;
  one.sequence = sequence;
  one.bytes = 1 << 20;
  one.start_ns = start;
  one.duration_ns = duration;
  return one;
}

TEST_CASE("the transfer of a collective is its least duration, and the last rank is to blame") {
  Names names;
  std::vector<Collective> all;
  for (int i = 0; i < 10; ++i)
    for (int rank = 0; rank < 4; ++rank)
      all.push_back(collective(names, rank, 100 + i, 10'000 * i + (rank == 2 ? 900 : 0),
                               rank == 2 ? 1000 : 1900));
  number_by_order(all);
  const Collectives found = collectives(all, names, 100'000);
  REQUIRE(found.rows.size() == 1);
  CHECK(found.rows[0].count == 10);
  CHECK(found.rows[0].partial == 0);
  CHECK(found.rows[0].median == 1000);
  CHECK(*found.rows[0].algorithm_rate == Approx((1 << 20) / 1e-6));
  CHECK(*found.rows[0].bus_rate == Approx(1.5 * (1 << 20) / 1e-6));
  REQUIRE(found.waits.size() == 4);
  CHECK(found.waits[0].wait == 9000);
  CHECK(found.waits[2].wait == 0);
  REQUIRE(found.stragglers.size() == 1);
  CHECK(found.stragglers[0].rank == 2);
  CHECK(found.stragglers[0].instances == 10);
  CHECK(found.stragglers[0].blame == 9000);

  // Without numbers the order in the communicator joins them.
  for (Collective& one : all) one.sequence = -1;
  std::reverse(all.begin(), all.end());
  number_by_order(all);
  const Collectives ordered = collectives(all, names, 100'000);
  REQUIRE(ordered.stragglers.size() == 1);
  CHECK(ordered.stragglers[0].blame == 9000);

  // A rank that was not traced: nothing is said about waits.
  std::erase_if(all, [](const Collective& one) { return one.rank == 2; });
  const Collectives some = collectives(all, names, 100'000);
  CHECK(some.rows[0].partial == 10);
  CHECK(some.waits.empty());
  CHECK(some.stragglers.empty());
}

TEST_CASE("delays, queues and gaps of launches") {
  RankEvents rank;
  rank.launches = true;
  rank.streams = {7};
  const auto add = [&](std::int64_t launch_end, std::int64_t start, std::int64_t duration) {
    rank.events.push_back(made(start, duration, EventType::compute));
    rank.events.back().launch_end_ns = launch_end;
  };
  add(0, 10, 90);     // ends at 100
  add(20, 105, 95);   // waited in the queue; gap of 5 that is no fault of the host
  add(260, 270, 30);  // gap 200 to 270: 60 of the host
  add(310, 305, 10);  // began before its launch had ended; gap of 5, all of the host
  const auto found = launches(rank);
  REQUIRE(found);
  CHECK(found->count == 4);
  CHECK(found->negative == 1);
  CHECK(found->max == 85);
  CHECK(found->gap_host == 65);
  CHECK(found->gap_rest == 15);
  CHECK(found->host_bound == 65);  // 200 to 260 and 300 to 305
  REQUIRE(found->queues.size() == 1);
  CHECK(found->queues[0].stream == 7);
  CHECK(found->queues[0].max == 1);
  rank.launches = false;
  CHECK_FALSE(launches(rank));
}

TEST_CASE("empty queues and gaps agree with a walk over nanoseconds") {
  std::mt19937_64 random(4);
  for (int round = 0; round < 200; ++round) {
    RankEvents rank;
    rank.launches = true;
    rank.streams = {7, 8, 20};
    rank.events = random_events(random, 300);
    for (GpuEvent& event : rank.events)
      if (random() % 5 != 0)
        event.launch_end_ns = event.start_ns - static_cast<std::int64_t>(random() % 60) + 10;
    std::int64_t first = 1000, last = 0, host_bound = 0, gaps = 0;
    for (const GpuEvent& e : rank.events) {
      first = std::min(first, e.start_ns);
      last = std::max(last, e.end_ns());
    }
    for (std::int64_t t = first; t < last; ++t)
      host_bound += std::none_of(rank.events.begin(), rank.events.end(), [&](const GpuEvent& e) {
        const bool launched = e.launch_end_ns != GpuEvent::kNoLaunch && e.launch_end_ns <= t;
        return (launched || e.start_ns <= t) && t < e.end_ns();
      });
    for (std::uint16_t stream = 0; stream < 3; ++stream)
      for (std::int64_t t = first; t < last; ++t) {
        bool before = false, running = false, after = false, computes = false;
        for (const GpuEvent& e : rank.events) {
          if (e.stream != stream) continue;
          computes = computes || e.type == EventType::compute;
          before = before || e.end_ns() <= t;
          running = running || (e.start_ns <= t && t < e.end_ns());
          after = after || e.start_ns > t;
        }
        gaps += computes && before && !running && after;
      }
    const auto found = launches(rank);
    REQUIRE(found);
    CHECK(found->host_bound == host_bound);
    CHECK(found->gap_host + found->gap_rest == gaps);
    CHECK(found->count + found->without == static_cast<std::int64_t>(rank.events.size()));
  }
}

TEST_CASE("names of collectives in c10d and NCCL") {
  CHECK(collective_operation("_allgather_base") == "all_gather");
  CHECK(collective_operation("_reduce_scatter_base") == "reduce_scatter");
  CHECK(collective_operation("allreduce_coalesced") == "all_reduce");
  CHECK(collective_operation("all_to_allv") == "all_to_all");
  CHECK(collective_operation("recv 0<-1") == "receive");
  CHECK(bus_factor("all_reduce", 4) == Approx(1.5));
  CHECK(bus_factor("broadcast", 4) == 1);
}

}  // namespace
}  // namespace dstrain::trace
