#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain::importing {

/// A word of the #SBATCH lines, without its quotes.
struct BatchWord {
  std::string text;
  int line = 0;  ///< from 1
};

/// A line of a batch script that gives sbatch no options.
struct BatchLine {
  std::string text;
  int line = 0;
  std::string_view why = {};  ///< of a line that looks like options: why sbatch passes over it
};

/// A batch script as sbatch reads it (get_argument and _opt_batch_script of Slurm's
/// src/sbatch/opt.c; 22.05 and 26.05 agree but for what is refused here).
struct BatchScript {
  std::vector<BatchWord> words;
  std::vector<BatchLine> body;
};

/// Told of a mistake: its line, what was found, what to do.
using BatchMistake = std::function<void(int line, std::string message, std::string hint)>;

/// #SBATCH lines count up to the first command; "#" outside quotes ends a line; a backslash takes
/// the next character as it is, inside quotes of both kinds, too. Reports what sbatch refuses, and
/// what it reads otherwise than it looks: empty words, a backslash before a blank, hetjob.
[[nodiscard]] BatchScript read_batch_script(std::string_view text, const BatchMistake& mistake);

/// An option of sbatch; short ones under the long name, '-' written as '_'.
struct BatchOption {
  std::string name;
  std::string value;  ///< "true" of one that takes no value; empty: an optional one without it
  int line = 0;
};

/// The words as getopt_long reads them. Reports missing and forbidden values, shortened names and
/// words that are no options; unknown options are given as they stand.
[[nodiscard]] std::vector<BatchOption> batch_options(const std::vector<BatchWord>& words,
                                                     const BatchMistake& mistake);

}  // namespace dstrain::importing
