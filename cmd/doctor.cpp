#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "cmd/command.h"
#include "cmd/engine_library.h"
#include "cmd/input_path.h"
#include "cmd/launch_job.h"
#include "cmd/recipe_words.h"
#include "cmd/version.h"
#include "engine/base/day.h"
#include "engine/base/error.h"
#include "engine/base/json.h"
#include "engine/base/module.h"
#include "engine/base/output.h"
#include "engine/base/unique_fd.h"
#include "engine/program/measured_machine.h"
#include "launcher/doctor/inspect_hosts.h"
#include "launcher/hosts/allocation.h"
#include "launcher/hosts/placement.h"
#include "launcher/hosts/slurm_allocation.h"
#include "launcher/job/host_rates.h"
#include "launcher/transport/reach_hosts.h"

namespace dstrain {
namespace {

using namespace launcher;  // NOLINT(google-build-using-namespace): this file is about nothing else

struct DoctorOptions {
  HostRequest request;
  std::filesystem::path ssh_config;
  std::filesystem::path output = "runs";
  bool ship = false;
  bool slurm = false;
  bool json = false;
  bool measure = false;
};

std::vector<HostInspection> inspect_this_machine() {
  HostInspection here;
  here.inspection = inspect({.build = kVersion,
                             .working_directory = std::filesystem::current_path(),
                             .engine_library = engine_library_path()});
  here.host.name = here.inspection->host;
  here.findings = examine(*here.inspection);
  return {std::move(here)};
}

std::vector<HostInspection> inspect_all(const DoctorOptions& options) {
  const Allocation allocation = allocate(options.request, probe_machine(),
                                         [](const char* name) { return std::getenv(name); });
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::unique_ptr<Transport> transport = reach_hosts(
      allocation.hosts,
      {.agent_command = {self, "agent"}, .ssh_config = options.ssh_config, .ship = options.ship});
  InspectHostsOptions how{.build = kVersion, .request = {}};
  how.request.working_directory = std::filesystem::current_path().string();
  return inspect_hosts(allocation.hosts, *transport, how);
}

/// Standard output while it lives goes where standard error goes: all that a measurement says, its
/// job included, beside one JSON object.
class OutputToError {
 public:
  OutputToError() : output_(::dup(STDOUT_FILENO)) { ::dup2(STDERR_FILENO, STDOUT_FILENO); }
  ~OutputToError() { ::dup2(output_.get(), STDOUT_FILENO); }
  OutputToError(const OutputToError&) = delete;
  OutputToError& operator=(const OutputToError&) = delete;

 private:
  UniqueFd output_;
};

/// Ranks in every slot of the hosts, in a job that trains nothing. Its folder goes when it ends
/// well; what it measured is kept for plans in file `kept` and put into `measured`.
int measure_hosts(const DoctorOptions& options, const std::filesystem::path& kept,
                  nlohmann::json& measured) {
  const Placement placement =
      place(allocate(options.request, probe_machine(), ::getenv), options.request.ranks);
  if (placement.nodes.size() < 2) {
    throw Error(ErrorKind::usage, "--measure over hosts needs two of them at least",
                "leave out --hosts, --hostfile and --slurm to measure this machine alone");
  }
  JobOptions job;
  job.recipe = recipe_called("quickstart");
  job.launch.run_name =
      fmt::format("doctor-{:%Y%m%d-%H%M%S}-{}", fmt::gmtime(std::time(nullptr)), ::getpid());
  const std::filesystem::path run =
      std::filesystem::absolute(options.output).lexically_normal() / job.launch.run_name;
  const std::filesystem::path file = run / "rates.json";
  // The recipe is that of any small model: a batch of all ranks is all that it must have.
  job.overrides = {fmt::format("batch.global={}", placement.world_size), "batch.micro=1",
                   "run.output=" + run.parent_path().string()};
  job.launch.request = options.request;
  job.launch.ssh_config = options.ssh_config;
  job.launch.ship = options.ship;
  job.rank_arguments = {"--measure", file.string()};
  if (const int code = launch_job(job); code != 0) return code;
  const std::vector<HostRates> hosts = read_host_rates(file, placement.nodes);
  RatesTogether together = read_rates_together(file);
  NetworkRates& network = together.network;
  network.measured = today();
  save_network(kept, together.device, network);
  std::filesystem::remove_all(run);
  print_text("{}\n", describe(hosts));
  measured["device"] = together.device;
  measured["network"] = {{"hosts", network.hosts},
                         {"ranks", network.ranks},
                         {"bytes_per_s", network.bytes_per_s},
                         {"latency_s", network.latency_s}};
  for (const HostRates& host : hosts)
    measured["hosts"].push_back({{"host", host.host},
                                 {"product_tflops", host.product_tflops},
                                 {"host_gb_s", host.host_gb_s},
                                 {"pair_gb_s", host.pair_gb_s}});
  measured["slow"] = nlohmann::json::array();
  for (const SlowHost& slow : slow_hosts(hosts)) {
    print_text("{} is slow: {}\n", slow.host, slow.text);
    measured["slow"].push_back({{"host", slow.host}, {"share", slow.share}, {"text", slow.text}});
  }
  print_text(
      "all {} ranks of {} hosts: {:.3g} GB/s out of a host, {:.3g} us for a gather of few bytes\n",
      network.ranks, network.hosts, network.bytes_per_s * 1e-9, network.latency_s * 1e6);
  print_text("{}: written to {}; plan and launch use it for jobs of several hosts\n",
             together.device, kept.string());
  return 0;
}

int measure_here() {
  std::string program = "dstrain";
  std::string command = "measure";
  std::array<char*, 3> argv = {program.data(), command.data(), nullptr};
  return run_engine_library(2, argv.data());
}

int doctor(const DoctorOptions& options) {
  ::signal(SIGPIPE, SIG_IGN);
  const bool here =
      options.request.hosts.empty() && options.request.hostfile.empty() && !options.slurm;
  if (options.slurm && !in_slurm_allocation(::getenv)) {
    throw Error(ErrorKind::usage, "--slurm: this is not the shell or script of a Slurm allocation",
                "use it behind salloc or in a batch script, or name --hosts");
  }
  const std::vector<HostInspection> hosts = here ? inspect_this_machine() : inspect_all(options);
  bool usable = true;
  for (const HostInspection& host : hosts) usable = usable && host.usable();
  const bool measures = usable && options.measure;
  if (!options.json) print_text(doctor_text(hosts));
  nlohmann::json measured;
  int code = usable ? 0 : exit_code(ErrorKind::hosts);
  if (measures) {
    std::optional<OutputToError> aside;
    if (options.json) {
      aside.emplace();
    } else {
      print_text("\n");
    }
    const std::filesystem::path kept = measured_file_to_write();
    measured["file"] = kept.string();
    code = here ? measure_here() : measure_hosts(options, kept, measured);
  }
  if (options.json) print_text(doctor_json(hosts, code == 0 ? measured : nlohmann::json()));
  return code;
}

}  // namespace

Command add_doctor(CLI::App& root) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* app =
      root.add_subcommand("doctor",
                          "What is wrong with this machine, or with hosts: reachability from here "
                          "and of each other,\n"
                          "drivers, libraries, versions, clocks, limits, disks, GPU health and "
                          "leftover memory. Starts no job.");
  app->footer(
      "Exit code 0: every host can be used, perhaps with warnings; 69: one cannot.\n"
      "Examples:\n"
      "  dstrain doctor\n"
      "  dstrain doctor --hostfile hosts.txt\n"
      "  dstrain doctor --measure\n"
      "  dstrain doctor --hostfile hosts.txt --measure");
  CLI::Option* hosts = app->add_option(
      "--hosts", options->request.hosts,
      "Hosts, reached by ssh: h1:8,h2:8 or user@h1:8. Default: this machine alone.");
  CLI::Option* file = app->add_option(
      "--hostfile", options->request.hostfile,
      "File with one `host slots=8` per line, or bare names; see hostfiles/README.md.");
  file->excludes(hosts);
  app->add_flag("--slurm", options->slurm,
                "All nodes of the Slurm allocation that this runs in, by one srun.")
      ->excludes(hosts)
      ->excludes(file);
  app->add_option("--include", options->request.include, "Only these of the hosts: h1@h2:0,2.");
  app->add_option("--exclude", options->request.exclude, "Leave out these: h3@h2:1.");
  app->add_option("--ssh-config", options->ssh_config,
                  "Configuration file for ssh instead of the user's own (ssh -F).")
      ->check(input_file());
  app->add_flag("--ship", options->ship,
                "Copy this dstrain to hosts that lack it or have another version, and run it from "
                "there.");
  app->add_flag(
      "--json", options->json,
      "Print one JSON object instead of tables; what a measurement says as it goes is on stderr.");
  app->add_flag(
      "--measure", options->measure,
      "Also measure this machine's rates (products, memory, host link, collectives; about "
      "a minute)\n"
      "and keep them in ~/.config/dstrain/machine.json, from which plan and launch take "
      "them. With hosts: what\n"
      "ranks in all their slots reach in each host, with the next one and all together, "
      "as `launch --preflight`\n"
      "does; rate and latency between hosts are kept there, too.");
  app->add_option("--output", options->output,
                  "Folder that all hosts see, for logs of a measurement over hosts while it runs. "
                  "Default: runs.");
  return {app, [options] { return doctor(*options); }};
}

}  // namespace dstrain
