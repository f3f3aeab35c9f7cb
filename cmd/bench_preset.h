#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "cmd/command.h"
#include "engine/bench/tables.h"

namespace dstrain {

using bench::BenchOptions;

/// A kind of bench: which cases there are, and what is shown of them.
struct BenchPreset {
  bench::BenchPlan plan;
  std::function<bench::BenchPages(bench::BenchResults&)> pages;
  /// What is done when they are written; a line for each thing.
  std::function<std::vector<std::string>(const bench::BenchResults&)> after = {};
};

/// Makes the runs of a preset in its folder, writes its pages and prints the document. Returns the
/// exit code; Error{again} where a signal ended it.
int run_bench(const BenchOptions& options, const std::function<BenchPreset()>& make);

/// Options that all have but for --ranks. `output`: the usual folder.
void add_bench_options(CLI::App& app, BenchOptions& options, const char* output);
/// An option that takes a list, "1,2,4".
template <class Value>
CLI::Option* add_list(CLI::App& app, const char* name, std::vector<Value>& values,
                      const char* help) {
  return app.add_option(name, values, help)->delimiter(',')->allow_extra_args(false);
}
/// A list of numbers of ranks.
CLI::Option* add_ranks(CLI::App& app, const char* name, std::vector<int>& ranks, const char* help);

/// Error{usage} where a list of options, `what`, names one of its values twice.
void require_different(std::size_t values, std::size_t different, const char* what);
template <class Values>
void require_once(const Values& values, const char* what) {
  const std::set<typename Values::value_type> seen(values.begin(), values.end());
  require_different(values.size(), seen.size(), what);
}

}  // namespace dstrain
