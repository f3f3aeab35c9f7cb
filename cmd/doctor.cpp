#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "cmd/command.h"
#include "cmd/engine_library.h"
#include "cmd/input_path.h"
#include "cmd/version.h"
#include "engine/base/error.h"
#include "engine/base/module.h"
#include "engine/base/output.h"
#include "launcher/doctor/inspect_hosts.h"
#include "launcher/hosts/allocation.h"
#include "launcher/transport/reach_hosts.h"

namespace dstrain {
namespace {

using namespace launcher;  // NOLINT(google-build-using-namespace): this file is about nothing else

struct DoctorOptions {
  HostRequest request;
  std::filesystem::path ssh_config;
  bool ship = false;
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

int doctor(const DoctorOptions& options) {
  ::signal(SIGPIPE, SIG_IGN);
  const bool here = options.request.hosts.empty() && options.request.hostfile.empty();
  const std::vector<HostInspection> hosts = here ? inspect_this_machine() : inspect_all(options);
  bool usable = true;
  for (const HostInspection& host : hosts) usable = usable && host.usable();
  print_text(options.json ? doctor_json(hosts) : doctor_text(hosts));
  if (!usable) return exit_code(ErrorKind::hosts);
  if (!options.measure) return 0;
  if (!options.json) print_text("\n");
  std::string program = "dstrain";
  std::string command = "measure";
  std::array<char*, 3> argv = {program.data(), command.data(), nullptr};
  return run_engine_library(2, argv.data());
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
      "  dstrain doctor --measure");
  CLI::Option* hosts = app->add_option(
      "--hosts", options->request.hosts,
      "Hosts, reached by ssh: h1:8,h2:8 or user@h1:8. Default: this machine alone.");
  CLI::Option* file = app->add_option(
      "--hostfile", options->request.hostfile,
      "File with one `host slots=8` per line, or bare names; see hostfiles/README.md.");
  file->excludes(hosts);
  app->add_option("--include", options->request.include, "Only these of the hosts: h1@h2:0,2.");
  app->add_option("--exclude", options->request.exclude, "Leave out these: h3@h2:1.");
  app->add_option("--ssh-config", options->ssh_config,
                  "Configuration file for ssh instead of the user's own (ssh -F).")
      ->check(input_file());
  app->add_flag("--ship", options->ship,
                "Copy this dstrain to hosts that lack it or have another version, and run it from "
                "there.");
  app->add_flag("--json", options->json, "Print one JSON object instead of tables.");
  app->add_flag(
         "--measure", options->measure,
         "Also measure this machine's rates (products, memory, host link, collectives; about "
         "a minute)\n"
         "and keep them in ~/.config/dstrain/machine.json, from which plan and launch take "
         "them.")
      ->excludes(hosts)
      ->excludes(file);
  return {app, [options] { return doctor(*options); }};
}

}  // namespace dstrain
