#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <string>

#include "test/support/files.h"

namespace dstrain::test {

/// A run's folder with known figures.
struct MadeRun {
  int steps = 100;
  int ranks = 2;
  double step_s = 0.1;
  double loss = 2;                                                 ///< of every step
  std::string recipe = {};                                         ///< lines behind the usual ones
  std::function<double(int step)> pace = [](int) { return 1.0; };  ///< times step_s
  /// Seconds that rank r waits for gather and for reduce, and for data.
  std::function<double(int rank)> gather = [](int) { return 0.0; };
  std::function<double(int rank)> reduce = [](int) { return 0.0; };
  double data_wait_s = 0;
  double host_s = 0.01;

  void write(const std::filesystem::path& path) const {
    std::filesystem::create_directories(path / "ranks");
    std::string metrics;
    for (int step = 1; step <= steps; ++step) {
      const double time = step_s * pace(step);
      metrics += fmt::format(
          R"({{"kind":"step","step":{},"loss":{},"samples_per_s":{},"tokens_per_s":0.0,"mfu":0.0,"step_s":{},"memory_bytes":0}})"
          "\n",
          step, loss, 64 / time, time);
    }
    spit(path / "metrics.jsonl", metrics);
    spit(path / "events.jsonl", R"({"kind":"started","step":0,"time":"2026-11-23T02:42:20Z"})"
                                "\n");
    spit(
        path / "environment.json",
        fmt::format(
            R"({{"build":"dstrain 0.1.0","system":"Linux","gpu_driver":"","gpu_names":[],"world_size":{}}})",
            ranks));
    spit(
        path / "plan.json",
        R"({"model":"vit-tiny","batch":{"global":64},"memory":{"allocated_bytes":11297536,"device_bytes":25276063744},"step_s":0.09})");
    spit(path / "recipe.yaml",
         "model: { name: vit-tiny, image_size: 8, patch_size: 4, channels: 1, width: 128, layers: "
         "4, heads: 4, mlp_width: 256 }\n"
         "data: { name: digits }\nbatch: { global: 64, micro: 32 }\noptimizer: { name: adamw, lr: "
         "1e-3 }\n"
         "precision: { compute: fp32 }\nrun: { steps: 100 }\nparallel: { backend: gloo, zero: { "
         "stage: 2 } }\n" +
             recipe);
    for (int rank = 0; rank < ranks; ++rank) {
      std::string lines;
      for (int step = 1; step <= steps; ++step) {
        const double g = gather(rank);
        const double r = reduce(rank);
        lines += fmt::format(
            R"({{"step":{},"start_ns":{},"step_s":{},"forward_s":{},"backward_s":{},"norm_s":0.001,"update_s":0.002,"data_wait_s":{},)"
            R"("host_s":{},"wait_s":{{"gather":{},"reduce":{},"receive":0,"copy_in":0.0}},"lane_s":{{}},"exposed_comm_s":{},)"
            R"("allocated":0,"reserved":0,"peak":0,"host_rss":4096,"calls":{{"all_gather shard-gather":[6,2141184]}},"traced":false}})"
            "\n",
            step, 1700000000000000000 + static_cast<std::int64_t>(step) * 100000000, step_s,
            0.03 + g, step_s - 0.033 - g, data_wait_s, host_s, g, r, g + r);
      }
      spit(path / "ranks" / fmt::format("rank{:04}.jsonl", rank), lines);
    }
  }
};

}  // namespace dstrain::test
