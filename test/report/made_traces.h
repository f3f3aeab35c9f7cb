#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "test/support/files.h"
#include "test/trace/made_trace.h"

namespace dstrain::test {

/// Traces of steps 4 and 5 of two ranks. A step: 4 ms of forward (rank 1: 6 ms), an all-reduce that
/// needs 2 ms once both are there, 1 ms of update, then `idle_ns` in which nothing is queued.
struct MadeTraces {
  std::int64_t idle_ns = 1'000'000;
  bool grows = false;  ///< cudaMalloc is called in step 5
  std::string run = "run0";
  std::string host_1 = "n0";  ///< of rank 1

  [[nodiscard]] std::string text(int rank) const {
    constexpr std::int64_t kMs = 1'000'000;
    MadeTrace made(rank, 2, rank == 0 ? "n0" : host_1, run);
    for (int lane = 0; lane < 2; ++lane)
      made.add(
          fmt::format(R"({{"ph": "M", "name": "thread_name", "pid": 1000, "tid": {}, "ts": 0, )"
                      R"("args": {{"name": "{}"}}}})",
                      lane, lane == 0 ? "compute" : "reduce"));
    for (int step = 4; step <= 5; ++step) {
      const std::int64_t begin = (step - 4) * (9 * kMs + idle_ns) + 10'000;
      const std::int64_t forward = rank == 0 ? 4 * kMs : 6 * kMs;
      made.slice("user_annotation", fmt::format("ProfilerStep#{}", step), "4242", "4242",
                 begin - 8'000, 9 * kMs);
      made.slice("user_annotation", "forward(a)", "4242", "4242", begin - 7'000, 8 * kMs);
      const auto run_action = [&](const char* kernel, int action, std::int64_t start,
                                  std::int64_t duration, const std::string& more) {
        made.kernel(kernel, action == 1 ? 9 : 7, start, duration, 10 * step + action,
                    fmt::format("\"step\": {}, \"action\": {}{}", step, action, more));
        made.slice("dstrain_lane",
                   action == 0   ? "forward(a)"
                   : action == 1 ? "reduce(a)"
                                 : "update",
                   "1000", action == 1 ? "1" : "0", start, duration,
                   fmt::format("\"action\": {}, \"step\": {}", action, step));
      };
      run_action("gemm<float>", 0, begin, forward, "");
      run_action("ncclDevKernel_AllReduce", 1, begin + forward, 8 * kMs - forward,
                 fmt::format(R"(, "Collective name": "allreduce", "In msg nelems": 1048576, )"
                             R"("Out msg nelems": 1048576, "dtype": "Float", "Group size": 2, )"
                             R"("Process Group Name": "data", "Process Group Ranks": "[0, 1]", )"
                             R"("Seq": {})",
                             step));
      run_action("adamw", 2, begin + 8 * kMs, kMs, "");
      const auto counter = [&](const char* name, std::int64_t mebibytes) {
        made.add(
            fmt::format(R"({{"ph": "C", "name": "{}", "pid": 1000, "tid": 0, "ts": {}, "args": )"
                        R"({{"value": {}}}}})",
                        name, as_us(begin + kMs), mebibytes << 20));
      };
      counter("memory allocated", 100 * step + rank);
      counter("memory reserved", 1000);
    }
    if (grows)
      made.slice("cuda_runtime", "cudaMalloc", "4242", "4242", 9 * kMs + idle_ns + 50'000, 1000);
    return made.text();
  }

  void write(const std::filesystem::path& folder) const {
    std::filesystem::create_directories(folder);
    for (int rank = 0; rank < 2; ++rank) {
      spit(folder / fmt::format("rank{}_trace.json", rank), text(rank));
      spit(
          folder / fmt::format("rank{}_actions.json", rank),
          R"x({"actions": [{"name": "forward(a)", "kind": "forward", "lane": "compute", "phase": "forward", "block": "a"},)x"
          R"x({"name": "reduce(a)", "kind": "reduce", "lane": "reduce", "phase": "backward", "group": "a", "after": [0]},)x"
          R"x({"name": "update", "kind": "update", "lane": "compute", "phase": "optimizer", "after": [1]}],)x"
          R"x("memory": {"planned": 524288000}})x");
    }
  }
};

}  // namespace dstrain::test
