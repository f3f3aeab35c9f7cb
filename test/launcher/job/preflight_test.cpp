#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "launcher/job/host_rates.h"
#include "test/launcher/job.h"
#include "test/support/catch.h"

using namespace dstrain::launcher::test;
using dstrain::test::TempDir;

namespace {

namespace fs = std::filesystem;

/// A folder with the program, an engine library that it finds beside itself, and an ssh that runs
/// its command here, but for host b, which refuses.
struct Programs {
  explicit Programs(const TempDir& directory) : folder(directory / "programs") {
    fs::create_directory(folder);
    fs::copy_file(FAKE_DSTRAIN, folder / "dstrain");
    fs::copy_file(FAKE_ENGINE, folder / "libdstrain_engine.so");
    std::ofstream(folder / "ssh")
        << "#!/bin/sh\n"
           "while [ \"$1\" != -- ]; do shift; done\n"
           "if [ \"$2\" = b ]; then\n"
           "  echo 'ssh: connect to host b port 22: Connection refused' >&2\n"
           "  exit 255\n"
           "fi\n"
           "exec sh -c \"$3\"\n";
    fs::permissions(folder / "ssh", fs::perms::owner_all);
  }
  [[nodiscard]] JobOptions options(int ranks) const {
    return {.ranks = ranks,
            .environment = {"PATH=" + folder.string() + ":" + std::getenv("PATH")},
            .arguments = {"--hosts", "a:1,b:1,c:1", "--preflight"},
            .program = (folder / "dstrain").string()};
  }
  fs::path folder;
};

}  // namespace

TEST_CASE("a host that cannot be used is left out before the start, and a spare takes its place",
          "[launcher][preflight][alone]") {
  TempDir directory;
  const Programs programs(directory);
  Job job(directory, {"print", "hello"}, programs.options(2));
  CHECK(job.wait() == 0);
  CAPTURE(job.output());
  CHECK(contains(job.output(), "preflight: b is left out: "));
  CHECK(contains(job.output(), "Connection refused"));
  CHECK(contains(job.output(), "preflight: 2 of 3 hosts can be used"));
  CHECK(
      contains(job.output(), "preflight: products 1 to 1 TFLOP/s, sums of two hosts 2 to 2 GB/s"));
  CHECK(contains(job.output(), "2 ranks on a, c, run directory"));
  CHECK(contains(job.log(1), "hello"));
}

TEST_CASE("a host that is slow gives way to a spare, and one that fails in the measurement",
          "[launcher][preflight][alone]") {
  TempDir directory;
  const Programs programs(directory);
  JobOptions options = programs.options(2);
  options.arguments[1] = "a:1,c:1,d:1";
  SECTION("slow") {
    options.environment.emplace_back(
        R"(FAKE_RATES={"product_tflops": [0.22], "pair_gb_s": 2.0},
           {"product_tflops": [0.1], "pair_gb_s": 2.0},
           {"product_tflops": [0.2], "pair_gb_s": 1.9})");
    Job job(directory, {"print", "hello"}, options);
    CHECK(job.wait() == 0);
    CAPTURE(job.output());
    CHECK(contains(job.output(),
                   "c is slow: products on its rank 0 0.1 TFLOP/s, 50 % of the median 0.2: it is "
                   "left out, as there is a spare in its place"));
    CHECK(contains(job.output(), "2 ranks on a, d, run directory"));
    CHECK(contains(job.log(1), "hello"));
  }
  SECTION("failed") {
    options.environment.emplace_back("FAKE_RATES=fail:1");
    Job job(directory, {"print", "hello"}, options);
    CHECK(job.wait() == 0);
    CAPTURE(job.output());
    CHECK(contains(job.output(), "preflight: the measurement failed: rank 1 failed: exit code 7"));
    CHECK(contains(job.output(), "c failed in the measurement: it is left out"));
    CHECK(contains(job.output(), "2 ranks on a, d, run directory"));
  }
  SECTION("without a spare") {
    options.ranks = 3;
    options.environment.emplace_back(
        R"(FAKE_RATES={"product_tflops": [1], "pair_gb_s": 2.0}, {"product_tflops": [1],
           "pair_gb_s": 2.1}, {"product_tflops": [1.1], "pair_gb_s": 0.4})");
    Job job(directory, {"print", "hello"}, options);
    CHECK(job.wait() == 0);
    CAPTURE(job.output());
    CHECK(contains(job.output(),
                   "preflight: d is slow: sums with another host 0.4 GB/s, 20 % of the median 2, "
                   "and there is no spare"));
    CHECK(contains(job.output(), "3 ranks on a, c, d, run directory"));
  }
  SECTION("no rates") {
    options.environment.emplace_back(R"(FAKE_RATES={"product_tflops": [1]})");
    Job job(directory, {"print", "hello"}, options);
    CHECK(job.wait() == 69);
    CAPTURE(job.output());
    CHECK(contains(job.output(), "preflight.json has no rates of these hosts"));
  }
}

TEST_CASE("slow hosts are told by the median of all, the slowest first", "[launcher][preflight]") {
  using dstrain::launcher::HostRates;
  const std::vector<HostRates> hosts = {{"a", {1.0, 1.0}, 10, 4},
                                        {"b", {1.0, 0.5}, 10, 4},
                                        {"c", {1.1, 1.0}, 2, 4},
                                        {"d", {1.0, 1.0}, 10, 3.3}};
  const auto slow = dstrain::launcher::slow_hosts(hosts);
  REQUIRE(slow.size() == 2);
  CHECK(slow[0].host == "c");
  CHECK(slow[0].text == "sums in the host 2 GB/s, 20 % of the median 10");
  CHECK(slow[1].host == "b");
  CHECK(slow[1].text == "products on its rank 1 0.5 TFLOP/s, 50 % of the median 1");
  CHECK(dstrain::launcher::slow_hosts({{"a", {1.0, 0.9}, 3, 0}}).empty());
}

TEST_CASE("rates of all hosts together are read, and refused where a file has none",
          "[launcher][preflight]") {
  TempDir directory;
  const fs::path file = directory / "rates.json";
  std::ofstream(file) << R"({"hosts": [], "all_hosts": {"device": "CPU", "hosts": 2, "ranks": 4,
                              "gather_gb_s": 3.0, "reduce_gb_s": 2.0, "latency_us": 150.0}})";
  const dstrain::launcher::RatesTogether rates = dstrain::launcher::read_rates_together(file);
  CHECK(rates.device == "CPU");
  CHECK(rates.network.hosts == 2);
  CHECK(rates.network.ranks == 4);
  CHECK(rates.network.bytes_per_s == 2e9);
  CHECK(rates.network.latency_s == Approx(150e-6));
  for (const char* text : {R"({"hosts": []})", R"({"all_hosts": null})",
                           R"({"all_hosts": {"device": "CPU", "hosts": 2, "ranks": 4}})"}) {
    std::ofstream(file) << text;
    CHECK_THROWS_WITH(dstrain::launcher::read_rates_together(file),
                      Catch::Contains("has no rates of these hosts"));
  }
}

TEST_CASE("without a spare for a bad host the preflight ends the job before the start",
          "[launcher][preflight][alone]") {
  TempDir directory;
  const Programs programs(directory);
  Job job(directory, {"print", "hello"}, programs.options(3));
  CHECK(job.wait() == 69);
  CAPTURE(job.output());
  CHECK(contains(job.output(),
                 "preflight: 1 of 3 hosts cannot be used, and the others have 2 of 3 slots"));
  CHECK_FALSE(std::filesystem::exists(directory / "runs"));
}
