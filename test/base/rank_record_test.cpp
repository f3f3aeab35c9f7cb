#include "engine/base/rank_record.h"

#include <thread>
#include <utility>

#include "test/support/catch.h"

namespace dstrain {

TEST_CASE("a collective's text says what is moved, by how many, and its size", "[record]") {
  auto record = RankRecordFile::anonymous();
  record.enter(3, "reduce(layer.7), micro-batch 2");
  record.enter_collective("reduce_scatter", 4, 3 << 19);
  REQUIRE(std::string(record.get().collective.data()) ==
          "reduce_scatter(layer.7), 4 ranks, 1.50 MiB");
  record.leave_collective();
  record.enter(3, "norm");
  record.enter_collective("all_reduce", 4, 40);
  REQUIRE(std::string(record.get().collective.data()) == "all_reduce(norm), 4 ranks, 40 B");
  record.leave_collective();
  record.enter(3, "meet the other ranks");
  record.enter_collective("connect", 2, 0);
  REQUIRE(std::string(record.get().collective.data()) == "connect(meet the other ranks), 2 ranks");
}

TEST_CASE("an action longer than its place does not spoil the collective's text", "[record]") {
  auto record = RankRecordFile::anonymous();
  record.enter(0, "gather(" + std::string(300, 'x') + ")");
  record.enter_collective("all_gather", 4, 1024);
  const std::string text(record.get().collective.data());
  REQUIRE(text.size() < record.get().collective.size());
  REQUIRE(text.starts_with("all_gather(xxx"));
}

TEST_CASE("being in a collective is one more entered than left, and time in it is waiting",
          "[record]") {
  auto record = RankRecordFile::anonymous();
  {
    const CollectiveScope scope(&record, "barrier", 2);
    REQUIRE(record.get().collectives == 1);
    REQUIRE(record.get().collectives_left == 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  REQUIRE(record.get().collectives_left == 1);
  REQUIRE(record.get().waited_ns >= 20'000'000);
}

TEST_CASE("a group of one makes no collectives", "[record]") {
  auto record = RankRecordFile::anonymous();
  const CollectiveScope alone(&record, "all_reduce", 1);
  REQUIRE(record.get().collectives == 0);
  REQUIRE(record.get().progress == 0);
}

TEST_CASE("the time of a step is its work and its waiting, what is between steps is neither",
          "[record]") {
  auto record = RankRecordFile::anonymous();
  const auto sleep = [](int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
  for (int step = 0; step < 2; ++step) {
    record.begin_step();
    sleep(10);
    record.enter_collective("all_reduce", 2, 8);
    sleep(20);
    record.leave_collective();
    record.end_step();
    record.enter_collective("barrier", 2, 0);
    sleep(100);
    record.leave_collective();
  }
  REQUIRE(record.get().steps == 2);
  REQUIRE(record.get().steps_waited_ns >= 40'000'000);
  REQUIRE(record.get().steps_ns >= record.get().steps_waited_ns + 20'000'000);
  REQUIRE(record.get().steps_waited_ns < record.get().waited_ns - 150'000'000);
  const std::int64_t before = record.get().steps_ns;
  record.add_step(std::chrono::milliseconds(5), std::chrono::milliseconds(3));
  REQUIRE(record.get().steps == 3);
  REQUIRE(record.get().steps_ns == before + 5'000'000);
}

TEST_CASE("every sign of life is progress", "[record]") {
  auto record = RankRecordFile::anonymous();
  std::int64_t before = 0;
  const auto moved = [&] {
    return record.get().progress > std::exchange(before, record.get().progress);
  };
  record.enter(0, "forward");
  REQUIRE(moved());
  record.tick();
  REQUIRE(moved());
  record.enter_collective("all_reduce", 2, 8);
  REQUIRE(moved());
  record.leave_collective();
  REQUIRE(moved());
  record.enter_section(RankSection::step);
  REQUIRE(moved());
}

TEST_CASE("a section lasts for its scope, also when that ends by an error", "[record]") {
  auto record = RankRecordFile::anonymous();
  record.enter_section(RankSection::step);
  try {
    const SectionScope scope(record, RankSection::checkpoint);
    REQUIRE(record.get().section == RankSection::checkpoint);
    throw 1;
  } catch (int) {
  }
  REQUIRE(record.get().section == RankSection::step);
}

}  // namespace dstrain
