#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "launcher/base/words.h"
#include "launcher/job/submit.h"
#include "launcher/transport/ship.h"

namespace dstrain::launcher {
namespace {

namespace fs = std::filesystem;

/// The same in slurm/train.sbatch, where it is explained.
constexpr const char* kRunAndRequeue = R"sh(
"$@" &
job=$!
signalled=
trap 'signalled=1; kill -USR1 $job 2>/dev/null' USR1
trap 'signalled=1; kill -TERM $job 2>/dev/null' TERM
while true; do
  signalled=
  wait $job
  code=$?
  [ -n "$signalled" ] || break
done
if [ $code = 75 ] && [ "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)" = RUNNING ] &&
  [ "${SLURM_RESTART_COUNT:-0}" -lt "${DSTRAIN_MAX_REQUEUES:-100}" ]; then
  scontrol requeue "$SLURM_JOB_ID" && sleep 60
fi
exit $code
)sh";

/// The text of a batch script in the making. All that people gave goes in by these functions, each
/// of which keeps it one word or one block, whatever it holds.
class ScriptText {
 public:
  explicit ScriptText(std::string head) : text_(std::move(head)) {}

  /// "#SBATCH --name=value"; nothing where the value is empty.
  void option(std::string_view name, const std::string& value) {
    if (!value.empty()) text_ += fmt::format("#SBATCH --{}={}\n", name, sbatch_word(value));
  }
  /// "#SBATCH word".
  void argument(const std::string& word) {
    if (word.empty())
      throw Error(ErrorKind::usage, "--sbatch: an empty word is no option of sbatch",
                  "leave it out");
    // In quotes, no word is a separator of sbatch, such as hetjob.
    text_ += fmt::format("#SBATCH {}\n", sbatch_word(word, !word.starts_with('-')));
  }
  /// Lines of our own.
  void add(std::string_view lines) { text_ += lines; }
  /// Lines of bash that people wrote.
  void setup(const std::string& lines) {
    if (lines.empty()) return;
    refuse_options(lines);
    text_ += "\n" + without_nul(lines);
    if (!lines.ends_with('\n')) text_ += '\n';
    text_ += "set +eu  # whatever the lines above have set\n";
  }
  /// "set -- word ..."; `words` are those of a shell already.
  void command(const std::vector<std::string>& words) {
    text_ += fmt::format("\nset -- {}\n", fmt::join(words, " "));
  }
  /// A file that holds `content` when the script runs.
  void file(const std::string& name, const std::string& content) {
    std::string mark = "END_OF_RECIPE";
    while (content.find(mark) != std::string::npos) mark += '_';
    text_ += fmt::format(
        "\nfolder=$(mktemp -d) || exit 74\ntrap 'rm -r \"$folder\"' EXIT\n"
        "cat >\"$folder\"/{} <<'{}' || exit 74\n{}{}{}\n",
        shell_word(name), mark, without_nul(content), content.ends_with('\n') ? "" : "\n", mark);
  }
  [[nodiscard]] std::string take() { return std::move(text_); }

  /// One word of bash, which may hold line breaks.
  static std::string shell_word(const std::string& text) { return shell_quote(without_nul(text)); }

 private:
  /// One word as sbatch reads it: '#' and blanks in quotes, and there a backslash before quotes and
  /// backslashes. A line break would end the #SBATCH line.
  static std::string sbatch_word(const std::string& text, bool in_quotes = false) {
    const auto control = [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; };
    if (std::ranges::any_of(text, control))
      throw Error(ErrorKind::usage,
                  fmt::format("'{}': an #SBATCH line cannot hold a line break or another control "
                              "character",
                              shown(text)),
                  "use a folder or a value without one");
    if (!in_quotes && shell_quote(text) == text) return text;  // letters, digits and the like
    std::string word = "'";
    for (const char c : text) {
      if (c == '\'' || c == '\\') word += '\\';
      word += c;
    }
    return word + "'";
  }

  /// sbatch takes neither NUL nor lines that end as on DOS.
  static const std::string& without_nul(const std::string& text) {
    if (text.find('\0') != std::string::npos || text.find("\r\n") != std::string::npos)
      throw Error(ErrorKind::usage,
                  fmt::format("'{}': sbatch takes no script with NUL or with lines that end as on "
                              "DOS",
                              shown(text)),
                  "take them out");
    return text;
  }

  static void refuse_options(const std::string& lines) {
    for (std::size_t at = 0; at < lines.size();) {
      const std::string_view rest = std::string_view(lines).substr(at);
      for (const std::string_view word : {"#SBATCH", "#SLURM", "#PBS", "#BSUB"}) {
        if (rest.starts_with(word))
          throw Error(
              ErrorKind::usage,
              fmt::format("--setup: a line begins with {}; options of sbatch stand above it", word),
              "give them as --sbatch=--NAME=VALUE");
      }
      at = std::min(lines.find('\n', at), lines.size() - 1) + 1;
    }
  }

  std::string text_;
};

/// A path for --output, where Slurm takes % for a pattern.
std::string without_patterns(const fs::path& path) {
  std::string text;
  for (const char c : path.string()) text += c == '%' ? "%%" : std::string(1, c);
  return text;
}

void add_options(ScriptText& script, const SubmitOptions& options, const fs::path& output) {
  script.option("job-name", options.recipe_name);
  script.option("nodes", std::to_string(options.nodes));
  script.option("ntasks-per-node", std::to_string(std::max(1, options.ranks_per_node)));
  if (options.gpus_per_node > 0)
    script.option("gpus-per-node",
                  fmt::format("{}{}{}", options.gpu_type, options.gpu_type.empty() ? "" : ":",
                              options.gpus_per_node));
  script.option("time", options.time);
  script.option("partition", options.partition);
  script.option("account", options.account);
  script.option("qos", options.qos);
  script.option("chdir", options.working_directory.string());
  script.option("output", without_patterns(output) + "/slurm-%j.out");
  script.add("#SBATCH --open-mode=append\n#SBATCH --requeue\n#SBATCH --no-kill\n");
  script.add("#SBATCH --signal=B:USR1@120\n");
  for (const std::string& argument : options.sbatch) script.argument(argument);
}

/// `recipe`: a word of the shell.
void add_launch(ScriptText& script, const SubmitOptions& options, const fs::path& program,
                const std::string& recipe) {
  std::vector<std::string> words = {
      ScriptText::shell_word(program.string()), "launch", recipe,
      "--run-name \"slurm-$SLURM_JOB_ID\" --resume " + ScriptText::shell_word(options.resume)};
  for (const std::string& argument : options.launch)
    words.push_back(ScriptText::shell_word(argument));
  script.command(words);
  script.add(kRunAndRequeue);
}

}  // namespace

std::string batch_script(const SubmitOptions& options, const fs::path& folder) {
  ScriptText script(
      "#!/bin/bash\n# Written by `dstrain launch --slurm`. Recipe and program are copies: what is "
      "edited meanwhile changes nothing.\n");
  add_options(script, options, folder);
  script.setup(options.setup);
  add_launch(script, options, folder / "program" / ship_tree(options.program).entry,
             ScriptText::shell_word((folder / (options.recipe_name + ".yaml")).string()));
  return script.take();
}

std::string printed_script(const SubmitOptions& options) {
  ScriptText script(
      "#!/bin/bash\n# Written by `dstrain launch --emit sbatch`: submit it with sbatch. The recipe "
      "stands in it; the program is run where it lies.\n");
  add_options(script, options, options.working_directory);
  script.setup(options.setup);
  const std::string name = options.recipe_name + ".yaml";
  script.file(name, options.recipe);
  add_launch(script, options, options.program, "\"$folder\"/" + ScriptText::shell_word(name));
  return script.take();
}

}  // namespace dstrain::launcher
