#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "cmd/command.h"
#include "cmd/number_option.h"
#include "engine/base/error.h"
#include "engine/base/output.h"
#include "engine/base/run_layout.h"
#include "engine/base/words.h"
#include "engine/trace/request.h"
#include "launcher/base/interrupts.h"

namespace dstrain {
namespace {

struct RequestOptions {
  std::string run;
  int steps = 3;
  int wait_s = 120;
};

int request_trace(const RequestOptions& options) {
  using namespace std::chrono_literals;
  launcher::Interrupts interrupts({SIGINT, SIGTERM, SIGHUP});
  trace::write_request(options.run, options.steps);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(options.wait_s);
  int stop_signal = 0;
  while (trace::is_requested(options.run) && std::chrono::steady_clock::now() < deadline &&
         (stop_signal = interrupts.next()) == 0)
    std::this_thread::sleep_for(50ms);
  // What is still there now is taken back; the run may have taken it in between.
  const bool withdrawn = trace::take_request(options.run) > 0;
  if (withdrawn && stop_signal != 0) {
    print_error("the request is withdrawn\n");
    return 128 + stop_signal;
  }
  if (withdrawn) {
    throw Error(ErrorKind::usage,
                fmt::format("{}: the run did not take the request within {} s, it is withdrawn",
                            options.run, options.wait_s),
                "look whether the run has ended, or wait longer with --wait; run the command on "
                "the host of rank 0 where the hosts share no disk");
  }
  print_text("taken: the run records {} step{}; its log says where the files are, else {}\n",
             options.steps, plural(options.steps),
             (RunLayout(options.run).traces() / "step-*").string());
  return 0;
}

}  // namespace

Command add_trace_request(CLI::App& root) {
  auto options = std::make_shared<RequestOptions>();
  CLI::App* app =
      root.add_subcommand("request", "Ask a run that is under way to record its next steps.");
  app->footer(
      "The run takes the request within a second and a step. What is recorded follows the run's "
      "recipe (trace.ranks, trace.detail, ...).\n"
      "Example: dstrain trace request runs/quickstart-20261121-101500-3fa2c1 --steps 5");
  app->add_option("run", options->run, "Directory of the run.")->required();
  app->add_option("--steps", options->steps, "Steps to record. Default: 3.")
      ->check(number_in(1, trace::kMaxTraceSteps));
  app->add_option("--wait", options->wait_s,
                  "Seconds to wait for the run; then the request is withdrawn. Default: 120.")
      ->check(number_in(0, 86400));
  return {app, [options] { return request_trace(*options); }};
}

}  // namespace dstrain
