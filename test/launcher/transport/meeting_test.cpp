#include "launcher/transport/meeting.h"

#include <sys/stat.h>

#include <fstream>
#include <map>

#include "engine/base/error.h"
#include "launcher/transport/dial_listener.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

using namespace dstrain;
using namespace dstrain::launcher;

namespace {

using Table = std::map<std::string, std::string>;
constexpr const char* kSecret = "0123456789abcdef0123456789abcdef";

Variables variables(const Table& table) {
  return [&table](const char* name) {
    const auto found = table.find(name);
    return found == table.end() ? nullptr : found->second.c_str();
  };
}

std::optional<Meeting> meeting(Table table) {
  table.try_emplace("DSTRAIN_JOIN_SECRET", kSecret);
  return meeting_in_environment(variables(table));
}

std::string error_of(const Table& table) {
  try {
    (void)meeting_in_environment(variables(table));
    return "no error";
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    CHECK_FALSE(error.hint().empty());
    return error.what();
  }
}

std::string with_secret_error(Table table) {
  table.try_emplace("DSTRAIN_JOIN_SECRET", kSecret);
  return error_of(table);
}

}  // namespace

TEST_CASE("each program's variables say where its processes meet", "[launcher][join]") {
  struct Case {
    const char* started_by;
    Table table;
    const char* address;
    int port;
  };
  const Case cases[] = {
      {"Kubernetes",
       {{"JOB_COMPLETION_INDEX", "2"},
        {"DSTRAIN_HOSTS", "4"},
        {"DSTRAIN_CONTROLLER", "job-train-0-0.job"}},
       "job-train-0-0.job",
       kJoinPort},
      {"Kubeflow Trainer",
       {{"PET_NODE_RANK", "2"},
        {"PET_NNODES", "4"},
        {"PET_MASTER_ADDR", "job-node-0-0.job"},
        {"PET_MASTER_PORT", "29400"},
        {"JOB_COMPLETION_INDEX", "2"}},
       "job-node-0-0.job",
       29400},
      {"LeaderWorkerSet",
       {{"LWS_WORKER_INDEX", "2"},
        {"LWS_GROUP_SIZE", "4"},
        {"LWS_LEADER_ADDRESS", "lws-0.lws.default"}},
       "lws-0.lws.default",
       kJoinPort},
      {"pbsdsh",
       {{"PBS_NODENUM", "2"}, {"DSTRAIN_HOSTS", "4"}, {"DSTRAIN_CONTROLLER", "10.0.0.1:7777"}},
       "10.0.0.1",
       7777},
      {"DSTRAIN_INDEX",
       {{"DSTRAIN_INDEX", "2"},
        {"DSTRAIN_HOSTS", "4"},
        {"DSTRAIN_CONTROLLER", "n1"},
        {"PBS_NODENUM", "0"},
        {"JOB_COMPLETION_INDEX", "1"}},
       "n1",
       kJoinPort},
      {"DSTRAIN_INDEX",
       {{"DSTRAIN_INDEX", "2"}, {"DSTRAIN_HOSTS", "4"}, {"DSTRAIN_CONTROLLER", "[fd00::1]:7777"}},
       "fd00::1",
       7777},
      {"DSTRAIN_INDEX",
       {{"DSTRAIN_INDEX", "2"}, {"DSTRAIN_HOSTS", "4"}, {"DSTRAIN_CONTROLLER", "[fd00::1]"}},
       "fd00::1",
       kJoinPort},
      {"DSTRAIN_INDEX",
       {{"DSTRAIN_INDEX", "2"}, {"DSTRAIN_HOSTS", "4"}, {"DSTRAIN_CONTROLLER", "fd00::1"}},
       "fd00::1",
       kJoinPort},
      {"Kubeflow Trainer",
       {{"PET_NODE_RANK", "2"},
        {"PET_NNODES", "4"},
        {"PET_MASTER_ADDR", "fd00::1"},
        {"PET_MASTER_PORT", "29400"}},
       "fd00::1",
       29400},
  };
  for (const Case& one : cases) {
    CAPTURE(one.started_by);
    const auto found = meeting(one.table);
    REQUIRE(found);
    CHECK(found->started_by == one.started_by);
    CHECK(found->index == 2);
    CHECK(found->count == 4);
    CHECK(found->addresses == std::vector<std::string>{one.address});
    CHECK(found->port == one.port);
    CHECK(found->secret == secret_from_text(kSecret));
    CHECK(found->patience == std::chrono::seconds(300));
    CHECK(found->returns);
  }
}

TEST_CASE("one process alone meets nobody and needs no secret", "[launcher][join]") {
  CHECK_FALSE(meeting({}));
  // An indexed Job of jobs that have nothing to do with each other.
  CHECK_FALSE(meeting({{"JOB_COMPLETION_INDEX", "3"}}));
  CHECK_FALSE(meeting({{"DSTRAIN_HOSTS", "1"}}));
  CHECK_FALSE(meeting({{"PBS_NODENUM", "0"}}));
  const Table one = {{"PET_NODE_RANK", "0"}, {"PET_NNODES", "1"}};
  CHECK_FALSE(meeting_in_environment(variables(one)));
  const Table empty = {{"DSTRAIN_HOSTS", ""}, {"DSTRAIN_INDEX", ""}};
  CHECK_FALSE(meeting_in_environment(variables(empty)));
}

TEST_CASE("programs that start several processes are known by their variables",
          "[launcher][join]") {
  const auto started = [](const Table& table) { return started_tasks(variables(table)); };
  CHECK(started({}).count == 0);
  // A batch script; a shell from which stale numbers were exported without a rank.
  CHECK(started({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}).count == 0);
  CHECK(started({{"WORLD_SIZE", "8"}}).count == 0);
  CHECK(started({{"PMI_SIZE", "4"}}).count == 0);
  const std::pair<const char*, const char*> rows[] = {
      {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
      {"PMI_RANK", "PMI_SIZE"},
      {"FLUX_TASK_RANK", "FLUX_JOB_SIZE"}};
  for (const auto& [task, size] : rows) {
    INFO(size);
    const StartedTasks found = started({{task, "0"}, {size, "4"}});
    CHECK(found.count == 4);
    CHECK(std::string(found.variable) == size);
  }
  // flux run -n 1 in a job of mpirun: whoever has started more counts.
  CHECK(started(
            {{"FLUX_TASK_RANK", "0"}, {"FLUX_JOB_SIZE", "1"}, {"PMI_RANK", "2"}, {"PMI_SIZE", "3"}})
            .count == 3);
}

TEST_CASE("variables that do not describe a meeting are refused by name", "[launcher][join]") {
  const Table kube = {
      {"JOB_COMPLETION_INDEX", "2"}, {"DSTRAIN_HOSTS", "4"}, {"DSTRAIN_CONTROLLER", "h"}};
  const auto with = [&kube](const char* name, const char* value) {
    Table table = kube;
    table[name] = value;
    return with_secret_error(table);
  };
  CHECK(with("DSTRAIN_CONTROLLER", "") == "DSTRAIN_HOSTS=4, and DSTRAIN_CONTROLLER is not set");
  CHECK(with("JOB_COMPLETION_INDEX", "4") ==
        "JOB_COMPLETION_INDEX='4' is no whole number from 0 to 3");
  CHECK(with("DSTRAIN_HOSTS", "four") == "DSTRAIN_HOSTS='four' is no whole number from 1 to 65536");
  CHECK(with("DSTRAIN_CONTROLLER", "h:0") ==
        "DSTRAIN_CONTROLLER='0' is no whole number from 1 to 65535");
  CHECK(with("DSTRAIN_CONTROLLER", "h;x") ==
        "DSTRAIN_CONTROLLER='h;x' is neither a host name nor an address");
  CHECK(with("DSTRAIN_CONTROLLER", ":80") ==
        "DSTRAIN_CONTROLLER=':80' is neither a host name nor an address");
  for (const char* address : {"[h]:80", "[fd00::1]80", "[fd00::1", "fd00::1::2", "a:b:80"}) {
    CHECK(with("DSTRAIN_CONTROLLER", address) ==
          fmt::format("DSTRAIN_CONTROLLER='{}' is neither a host name nor an address", address));
  }
  CHECK(with("DSTRAIN_CONTROLLER", "[fd00::1]:") ==
        "DSTRAIN_CONTROLLER='' is no whole number from 1 to 65535");
  CHECK(with("DSTRAIN_JOIN_PATIENCE", "0") ==
        "DSTRAIN_JOIN_PATIENCE='0' is no whole number from 1 to 86400");
  CHECK(with_secret_error({{"DSTRAIN_HOSTS", "4"}, {"DSTRAIN_CONTROLLER", "h"}}) ==
        "DSTRAIN_HOSTS=4, and no variable says which of them this process is");
  CHECK(with_secret_error({{"DSTRAIN_INDEX", "1"}}) ==
        "DSTRAIN_INDEX is set, and DSTRAIN_HOSTS is not");
  // An elastic range of torchrun.
  CHECK(with_secret_error({{"PET_NODE_RANK", "0"}, {"PET_NNODES", "1:4"}}) ==
        "PET_NNODES='1:4' is no whole number from 1 to 65536");
}

TEST_CASE("a meeting needs a secret that nobody else can read or guess", "[launcher][join]") {
  const dstrain::test::TempDir folder;
  const Table start = {
      {"LWS_WORKER_INDEX", "0"}, {"LWS_GROUP_SIZE", "2"}, {"LWS_LEADER_ADDRESS", "lws-0.lws"}};
  const auto with = [&start](const Table& more) {
    Table table = more;
    table.insert(start.begin(), start.end());
    return table;
  };
  CHECK(
      error_of(start) ==
      "LeaderWorkerSet has started 2 `dstrain launch`, and none has a secret by which to know the "
      "others: neither DSTRAIN_JOIN_SECRET nor DSTRAIN_JOIN_SECRET_FILE is set");
  CHECK(error_of(with({{"DSTRAIN_JOIN_SECRET", "tooshort"}})) ==
        "DSTRAIN_JOIN_SECRET: 8 bytes can be guessed; a secret has at least 16");
  const std::string file = folder / "secret";
  std::ofstream(file) << kSecret << '\n';
  const Table by_file = with({{"DSTRAIN_JOIN_SECRET_FILE", file}});
  ::chmod(file.c_str(), 0640);
  CHECK(error_of(by_file) == "DSTRAIN_JOIN_SECRET_FILE: others may read " + file + " (mode 640)");
  ::chmod(file.c_str(), 0600);
  const auto found = meeting_in_environment(variables(by_file));
  REQUIRE(found);
  CHECK(found->secret == secret_from_text(kSecret));  // without its line end
  CHECK(error_of(with({{"DSTRAIN_JOIN_SECRET_FILE", file}, {"DSTRAIN_JOIN_SECRET", kSecret}})) ==
        "DSTRAIN_JOIN_SECRET and DSTRAIN_JOIN_SECRET_FILE are both set");
  CHECK_THAT(error_of(with({{"DSTRAIN_JOIN_SECRET_FILE", folder / "absent"}})),
             Catch::Contains("absent"));
  ::mkfifo((folder / "fifo").c_str(), 0600);
  CHECK_THAT(error_of(with({{"DSTRAIN_JOIN_SECRET_FILE", folder / "fifo"}})),
             Catch::Contains("FIFO"));
}

TEST_CASE("secrets of the same text are the same, others are not", "[launcher][join]") {
  CHECK(secret_from_text("a secret of people") == secret_from_text("a secret of people"));
  CHECK(secret_from_text("a secret of people") != secret_from_text("a secret of people "));
  // SHA-256 of "abc" (FIPS 180-4, example B.1).
  CHECK(to_hex(secret_from_text("abc")) ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_CASE("a listener on a port that is taken names it", "[launcher][join]") {
  const JobSecret secret = secret_from_text(kSecret);
  const DialListener first(0, secret, 2);
  try {
    const DialListener second(first.target().port, secret, 2);
    FAIL("two listeners on one port");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::hosts);
    CHECK_THAT(error.what(), Catch::Contains(std::to_string(first.target().port)));
    CHECK_THAT(error.what(), Catch::Contains("in use"));
  }
}
