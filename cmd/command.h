#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <vector>

namespace dstrain {

/// One subcommand: what CLI11 parses and what runs when it was chosen; `run` returns the exit code.
struct Command {
  CLI::App* app = nullptr;
  std::function<int()> run;
};

/// Parses, runs the command that was chosen, and turns every error into a message on stderr and its
/// exit code.
int run_command(CLI::App& app, const std::vector<Command>& commands, int argc, char** argv);

/// Runs `body` and turns every error into a message on stderr and its exit code.
int run_guarded(const std::function<int()>& body);

Command add_recipe_check(CLI::App& root);
Command add_recipe_show(CLI::App& root);
Command add_recipe_list(CLI::App& root);
Command add_recipe_schema(CLI::App& root);
Command add_recipe_import(CLI::App& root);
Command add_launch(CLI::App& root);
Command add_agent(CLI::App& root);
Command add_fetch(CLI::App& root);
Command add_evaluate(CLI::App& root);
Command add_verify(CLI::App& root);
Command add_setup(CLI::App& root);
Command add_doctor(CLI::App& root);
Command add_completion(CLI::App& root);
Command add_trace_merge(CLI::App& root);
Command add_trace_request(CLI::App& root);
Command add_report(CLI::App& root);
Command add_trace_analyze(CLI::App& root);
Command add_trace_diff(CLI::App& root);
Command add_checkpoint_list(CLI::App& root);
Command add_checkpoint_verify(CLI::App& root);
Command add_checkpoint_prune(CLI::App& root);
Command add_checkpoint_inspect(CLI::App& root);

// In the engine library.
Command add_engine(CLI::App& root);
Command add_recipe_fits(CLI::App& root);
Command add_recipe_new(CLI::App& root);
Command add_measure(CLI::App& root);
Command add_checkpoint_export(CLI::App& root);
Command add_checkpoint_import(CLI::App& root);
Command add_bench_step(CLI::App& root);
Command add_bench_kernel(CLI::App& root);
Command add_bench_flops(CLI::App& root);
Command add_bench_images(CLI::App& root);
Command add_bench_run(CLI::App& root);
Command add_bench_zero(CLI::App& root);
Command add_bench_parallel(CLI::App& root);
Command add_data_show(CLI::App& root);
Command add_data_tokenize(CLI::App& root);
Command add_data_prepare(CLI::App& root);
Command add_generate(CLI::App& root);
Command add_classify(CLI::App& root);

}  // namespace dstrain
