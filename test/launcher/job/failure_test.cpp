#include "launcher/job/failure.h"

#include <csignal>
#include <nlohmann/json.hpp>

#include "engine/base/host_memory.h"
#include "engine/base/replica_words.h"
#include "test/support/catch.h"

using namespace dstrain::launcher;

namespace {

RankEnd ended(int rank, int code, int signal, std::int64_t time, std::int64_t stop_time = 0) {
  RankEnd end;
  end.rank = rank;
  end.host = "h";
  end.exit_code = code;
  end.signal = signal;
  end.time_ns = time;
  end.stop_time_ns = stop_time;
  return end;
}

RankEnd with_error(RankEnd end, int code, std::int64_t time) {
  end.error = "something broke";
  end.error_code = code;
  end.error_time_ns = time;
  return end;
}

}  // namespace

TEST_CASE("the strongest ending is the root, the earliest within its class",
          "[launcher][failure]") {
  const RankEnd clean = ended(0, 0, 0, 1);
  const RankEnd peer = with_error(ended(1, 75, 0, 2), 75, 2);
  const RankEnd exit = ended(2, 1, 0, 3);
  const RankEnd signal = ended(3, 0, SIGSEGV, 4);
  const RankEnd later_signal = ended(4, 0, SIGKILL, 5);
  const RankEnd error = with_error(ended(5, 3, 0, 9), 3, 6);
  CHECK(!find_root({clean}));
  CHECK(find_root({clean, peer})->rank == 1);
  CHECK(find_root({clean, peer, exit})->rank == 2);
  CHECK(find_root({peer, exit, later_signal, signal})->rank == 3);
  CHECK(find_root({peer, exit, signal, error})->rank == 5);
}

TEST_CASE("what dstrain sent is no cause", "[launcher][failure]") {
  CHECK(classify(ended(0, 0, SIGTERM, 5, 4)) == EndClass::stopped);
  CHECK(classify(ended(0, 0, SIGKILL, 5, 4)) == EndClass::stopped);
  CHECK(classify(ended(0, 143, 0, 5, 4)) == EndClass::stopped);
  CHECK(classify(ended(0, 0, SIGTERM, 5)) == EndClass::signal);
  CHECK(classify(ended(0, 0, SIGSEGV, 5, 4)) == EndClass::late);
  CHECK(classify(with_error(ended(0, 3, 0, 5, 4), 3, 5)) == EndClass::late);
  RankEnd asked = ended(0, 0, SIGTERM, 5);
  asked.finish_asked = true;
  CHECK(classify(asked) == EndClass::stopped);
}

TEST_CASE("a rank that had named its error is the root even when dstrain killed it",
          "[launcher][failure]") {
  const RankEnd root = with_error(ended(0, 0, SIGKILL, 5, 4), 74, 2);
  CHECK(find_root({ended(1, 1, 0, 3), root})->rank == 0);
  CHECK(exit_code(root) == 74);
}

TEST_CASE("the report names the rank and folds the others", "[launcher][failure]") {
  RankEnd root = ended(2, 0, SIGKILL, 1);
  root.step = 17;
  root.action = "reduce(layer.7)";
  root.last_lines = {"one", "two", "\xff"};
  const std::vector<RankEnd> ends = {root, ended(0, 0, SIGTERM, 2, 1), ended(1, 0, SIGKILL, 2, 1),
                                     ended(3, 75, 0, 2)};
  const FailureReport report = make_report(root, ends);
  CHECK(report.summary ==
        "rank 2 failed at step 17 in reduce(layer.7): killed by signal 9 (SIGKILL), not sent by "
        "dstrain");
  CHECK(report.others == std::vector<std::string>{"ranks 0-1: ended by dstrain",
                                                  "rank 3: lost a peer (exit code 75)"});
  const auto json = nlohmann::json::parse(to_json(report, 137));
  CHECK(json["root"]["signal"] == 9);
  CHECK(json["root"]["exit_code"].is_null());
  CHECK(json["exit_code"] == 137);
  CHECK(to_text(report, "rank0002.log", 2).find("  | two\n") != std::string::npos);
  CHECK(to_text(report, "rank0002.log", 2).find("one") == std::string::npos);
}

TEST_CASE("an error that several ranks met is told once", "[launcher][failure]") {
  RankEnd root = with_error(ended(0, 65, 0, 5), 65, 1);
  root.error = "no such data";
  root.last_lines = {"reading", "error: no such data", "  hint: give a path"};
  RankEnd same = with_error(ended(1, 65, 0, 6), 65, 2);
  same.error = root.error;
  RankEnd other = with_error(ended(2, 65, 0, 6), 65, 2);
  other.error = "another";
  const FailureReport report = make_report(root, {root, same, other});
  CHECK(report.others ==
        std::vector<std::string>{"rank 2: error: another", "rank 1: the same error"});
  const std::string text = to_text(report, "", 20);
  CHECK(text.find("no such data") == text.rfind("no such data"));
  CHECK(text.find("  |   hint: give a path\n") != std::string::npos);
  CHECK(text.find("log:") == std::string::npos);
}

TEST_CASE("ranks that a GPU had no memory for are one line, whatever their figures",
          "[launcher][failure]") {
  RankEnd root = with_error(ended(0, 70, 0, 5), 70, 1);
  root.error = "CUDA out of memory: 2.00 GiB asked for, 1.20 GiB of 79.11 GiB free on GPU 0";
  std::vector<RankEnd> ends = {root};
  for (int rank = 1; rank < 4; ++rank) {
    ends.push_back(with_error(ended(rank, 70, 0, 6), 70, 2));
    ends.back().error =
        "CUDA out of memory: 2.00 GiB asked for, 1.10 GiB of 79.11 GiB free on GPU 1";
  }
  const FailureReport report = make_report(root, ends);
  CHECK(report.kind == FailureKind::oom);
  CHECK(report.others == std::vector<std::string>{"ranks 1-3: out of memory, too"});
}

TEST_CASE("memory of the host that a rank could not have is advised on as such",
          "[launcher][failure]") {
  RankEnd root = with_error(ended(0, 70, 0, 5), 70, 1);
  root.error = dstrain::host_memory_error(std::int64_t{4} << 40).what();
  const FailureReport report = make_report(root, {root});
  CHECK(report.kind == FailureKind::oom);
  CHECK(report.advice.starts_with("host memory"));
  CHECK(report.summary.find("4.00 TiB (4398046511104 bytes) wanted") != std::string::npos);
}

TEST_CASE("a SIGKILL beside a risen kernel counter is called out of memory",
          "[launcher][failure]") {
  RankEnd root = ended(0, 0, SIGKILL, 1);
  root.out_of_memory = true;
  root.host = "n1";
  root.memory_limit_bytes = std::int64_t{3} << 29;
  const FailureReport report = make_report(root, {root});
  CHECK(report.kind == FailureKind::oom);
  CHECK(exit_code(root) == 137);
  CHECK(report.summary ==
        "rank 0 was killed by the kernel for memory: the processes on n1 share 1.50 GiB (signal 9, "
        "SIGKILL)");
  CHECK(nlohmann::json::parse(to_json(report, 137))["memory_bytes"]["host_limit"] ==
        root.memory_limit_bytes);
}

TEST_CASE("wrong weights are a kind of their own, and worth a start", "[launcher][failure]") {
  for (const std::string_view words : {dstrain::kWrongReplica, dstrain::kReplicasDiffer}) {
    RankEnd end = with_error(ended(3, 93, 0, 5), 93, 4);
    end.error = std::string(words) + ": rank 3 on h";
    const FailureReport report = make_report(end, {end, with_error(ended(1, 75, 0, 6), 75, 6)});
    CHECK(report.kind == FailureKind::replica);
    CHECK(report.root.rank == 3);
    CHECK(worth_restart(report));
    CHECK(exit_code(report.root) == 93);
    CHECK(report.summary.find(words) != std::string::npos);
    CHECK_FALSE(report.advice.empty());
  }
  RankEnd policy = with_error(ended(3, 93, 0, 5), 93, 4);
  CHECK_FALSE(worth_restart(make_report(policy, {policy})));
}
