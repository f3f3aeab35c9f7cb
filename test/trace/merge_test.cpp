#include "engine/trace/merge.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/unique_fd.h"
#include "engine/trace/scanner.h"
#include "test/support/catch.h"
#include "test/support/files.h"
#include "test/support/temp_dir.h"
#include "test/trace/made_trace.h"

using namespace dstrain;
using namespace dstrain::trace;
using dstrain::test::MadeTrace;
using dstrain::test::spit;
using dstrain::test::TempDir;

namespace {

/// Two ranks on two hosts; the clock of the second is 5 ms ahead.
void make_run(const TempDir& dir, int num_kernels = 50) {
  for (int rank = 0; rank < 2; ++rank) {
    MadeTrace made(rank, 2, "n" + std::to_string(rank));
    made.names();
    const std::int64_t ahead = rank * 5'000'000;
    for (int i = 0; i < num_kernels; ++i) {
      made.kernel("k" + std::to_string(i), 7, 100'000 * i + ahead, 90'000, 2 * i);
      made.collective("allreduce", i, 100'000 * i + ahead + rank * 100, 20'000 - rank * 100,
                      2 * i + 1);
    }
    made.add(
        R"({"ph": "C", "name": "memory allocated", "pid": 1000, "tid": 0, "ts": 5, "args": {"bytes": 12}})");
    made.kernel("overlapping", 7, ahead + 50'000, 60'000, 1000);
    made.slice("user_annotation", "ProfilerStep#4", "4242", "4242", ahead, 1'000'000);
    spit(dir / ("rank" + std::to_string(rank) + "_trace.json"), made.text());
  }
}

TraceSources sources_of(const std::vector<std::filesystem::path>& paths) {
  return find_rank_traces(paths);
}

std::string refusal(const std::vector<std::filesystem::path>& paths) {
  try {
    (void)sources_of(paths);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

MergeResult merge(const TempDir& dir, const std::filesystem::path& output,
                  MergeOptions options = {}) {
  options.output = output;
  return merge_traces(sources_of({dir.path()}), options);
}

}  // namespace

TEST_CASE("merged ranks have rows, flows and launches of their own, in one time", "[trace]") {
  const TempDir dir;
  make_run(dir);
  const MergeResult result = merge(dir, dir / "merged_trace.json");
  REQUIRE(result.notes.empty());
  REQUIRE(std::abs(result.clocks.at(1).offset_ns + 5'000'000) <= result.clocks[1].half_interval_ns);
  REQUIRE(result.clocks[1].half_interval_ns < 40'000);

  const auto json = nlohmann::json::parse(test::slurp(dir / "merged_trace.json"));
  std::map<int, int> kernels;
  std::map<std::uint64_t, int> flows;
  std::set<std::string> rows;
  std::map<std::pair<int, std::string>, std::vector<std::pair<double, double>>> spans;
  for (const auto& event : json["traceEvents"]) {
    const int pid = event["pid"].get<int>() - 1'000'000;
    if (event["ph"] == "M" && event["name"] == "thread_name")
      rows.insert(std::to_string(pid / 100) + " " + event["args"]["name"].get<std::string>());
    if (event.contains("id")) ++flows[event["id"].get<std::uint64_t>()];
    if (event["ph"] != "X" || event["cat"] != "kernel") continue;
    REQUIRE(event["args"]["rank"] == pid / 100);
    REQUIRE(event["args"]["correlation"].get<std::uint64_t>() >> 32 ==
            static_cast<std::uint64_t>(pid / 100));
    ++kernels[pid / 100];
    spans[{pid, event["tid"].dump()}].emplace_back(
        event["ts"], event["ts"].get<double>() + event["dur"].get<double>());
  }
  REQUIRE(kernels == std::map<int, int>{{0, 101}, {1, 101}});
  REQUIRE(flows.size() == 202);
  for (const auto& [id, count] : flows) REQUIRE(count == 2);
  REQUIRE(rows.contains("0 stream 7"));
  REQUIRE(rows.contains("1 stream 7 (2)"));
  for (auto& [row, list] : spans) {
    std::ranges::sort(list);
    for (std::size_t i = 1; i < list.size(); ++i) REQUIRE(list[i].first >= list[i - 1].second);
  }
}

TEST_CASE("steps, ranks, lanes and short events are chosen", "[trace]") {
  const TempDir dir;
  make_run(dir);
  const auto events = [&](const MergeOptions& options) {
    return merge(dir, dir / "merged_trace.json", options).events;
  };
  const std::uint64_t all = events({});
  REQUIRE(all == 2 * (3 + 101 * 4 + 2));
  REQUIRE(events({.ranks = {1}}) == all / 2);
  REQUIRE(events({.lanes = MergeLanes::device}) == 2 * (3 + 101 + 1));
  REQUIRE(events({.lanes = MergeLanes::host}) == 2 * (3 + 101 + 1));
  REQUIRE(events({.min_ns = 50'000}) == 2 * (3 + 51 + 202 + 1 + 1));
  const std::uint64_t step = events({.steps = {{4, 4}}});
  REQUIRE(step > 2 * (3 + 10 * 8));
  REQUIRE(step < 2 * (3 + 13 * 8));
  REQUIRE_THROWS_AS(events({.ranks = {7}}), Error);
}

TEST_CASE("a rank that is missing is named, one that is doubled or foreign is refused", "[trace]") {
  const TempDir dir;
  spit(dir / "rank0_trace.json", MadeTrace(0, 3).text());
  spit(dir / "rank2_trace.json", MadeTrace(2, 3).text());
  spit(dir / "rank2_actions.json", "{}");
  const TraceSources found = sources_of({dir.path()});
  REQUIRE(found.files.size() == 2);
  REQUIRE(found.notes == std::vector<std::string>{"no trace of 1 of 3 ranks: 1"});
  const TempDir other;
  spit(other / "a.json", MadeTrace(2, 3).text());
  spit(other / "b.json", MadeTrace(1, 3, "n0", "another").text());
  REQUIRE(refusal({dir.path(), other / "a.json"}).find("rank 2 is there twice") !=
          std::string::npos);
  REQUIRE(refusal({dir.path(), other / "b.json"}).find("run another (program abc)") !=
          std::string::npos);
  REQUIRE(refusal({dir / "nothing"}).find("nothing: no such file") != std::string::npos);
  const TempDir empty;
  REQUIRE(refusal({empty.path()}).find("no trace in") != std::string::npos);
  MergeOptions options{.output = other / "m.json"};
  (void)merge_traces(found, options);
  REQUIRE(refusal({other / "m.json"}).find("is a merged trace") != std::string::npos);
}

TEST_CASE("pftrace holds one rank within --memory, or is refused", "[trace]") {
  const TempDir dir;
  make_run(dir);
  MergeOptions options{.format = MergeFormat::pftrace};
  const MergeResult result = merge(dir, dir / "m.pftrace", options);
  REQUIRE(result.slices == 2 * (101 * 2 + 1));
  REQUIRE(result.bytes == std::filesystem::file_size(dir / "m.pftrace"));
  options.memory_bytes = 10'000;
  REQUIRE_THROWS_WITH(merge(dir, dir / "n.pftrace", options),
                      Catch::Matchers::Contains("--memory"));
  REQUIRE_FALSE(std::filesystem::exists(dir / "n.pftrace"));
  REQUIRE_FALSE(std::filesystem::exists(dir / "n.pftrace.part"));
}

TEST_CASE("a merged trace is written into a pipe, which stays", "[trace]") {
  const TempDir dir;
  make_run(dir, 3);
  const std::filesystem::path pipe = dir / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const UniqueFd reader(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  REQUIRE(reader);
  const MergeResult result = merge(dir, pipe);
  std::string text(std::size_t{1} << 20, '\0');
  const ssize_t got = ::read(reader.get(), text.data(), text.size());
  REQUIRE(got > 0);
  CHECK(static_cast<std::uint64_t>(got) == result.bytes);
  CHECK(nlohmann::json::parse(text.substr(0, static_cast<std::size_t>(got)))["traceEvents"].size() >
        10);
  CHECK(std::filesystem::is_fifo(pipe));
}

TEST_CASE("a merged trace that the disk does not take is 74, and nothing of it stays", "[trace]") {
  const TempDir dir;
  make_run(dir, 5000);
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 1'000'000, .rlim_max = 1'000'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      (void)merge(dir, dir / "m.json");
    } catch (const Error& error) {
      ::_exit(exit_code(error.kind()));
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(WEXITSTATUS(status) == 74);
  REQUIRE_FALSE(std::filesystem::exists(dir / "m.json.part"));
}
