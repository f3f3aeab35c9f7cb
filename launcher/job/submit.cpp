#include "launcher/job/submit.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/redact.h"
#include "engine/base/run_layout.h"
#include "launcher/base/child_process.h"
#include "launcher/base/fd.h"
#include "launcher/base/run_directory.h"
#include "launcher/base/words.h"
#include "launcher/hosts/placement.h"
#include "launcher/transport/ship.h"

namespace dstrain::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kSbatchLimit{60};

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

std::string option(const std::string& name, const std::string& value) {
  return value.empty() ? "" : fmt::format("#SBATCH --{}={}\n", name, shell_quote(value));
}

/// A word of our own tree in the script; newlines would end an #SBATCH line.
void refuse_newlines(const std::string& text) {
  if (text.find('\n') == std::string::npos) return;
  throw Error(ErrorKind::usage,
              fmt::format("'{}': a batch script cannot hold a line break here", text),
              "use a folder or a value without one");
}

fs::path frozen_program(const SubmitOptions& options, const fs::path& folder) {
  return folder / "program" / ship_tree(options.program).entry;
}

void copy_tree(const SubmitOptions& options, const fs::path& folder) {
  const ShipTree tree = ship_tree(options.program);
  const fs::path target = folder / "program";
  for (const std::string& name : tree.names) {
    fs::create_directories((target / name).parent_path());
    fs::copy(tree.root / name, target / name, fs::copy_options::recursive);
  }
}

/// A path for --output, where Slurm takes % for a pattern.
std::string without_patterns(const fs::path& path) {
  std::string text;
  for (const char c : path.string()) text += c == '%' ? "%%" : std::string(1, c);
  return text;
}

UniqueFd memory_file(const char* name) {
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC));
  if (!fd) fail_system("make a file in memory");
  return fd;
}

std::string content(const UniqueFd& fd) {
  std::string text;
  std::array<char, 4096> block{};
  for (off_t at = 0;; at += static_cast<off_t>(block.size())) {
    const ssize_t got = ::pread(fd.get(), block.data(), block.size(), at);
    if (got <= 0) break;
    text.append(block.data(), static_cast<std::size_t>(got));
    if (static_cast<std::size_t>(got) < block.size()) break;
  }
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

/// Number of the job.
std::string call_sbatch(const fs::path& script) {
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const UniqueFd out = memory_file("sbatch output");
  const UniqueFd error = memory_file("sbatch error");
  ChildProcess sbatch({"sbatch", "--parsable", script.string()},
                      {null.get(), out.get(), error.get()});
  sbatch.end(kSbatchLimit);
  if (sbatch.signal() != 0 || sbatch.exit_code() != 0) {
    const std::string words = content(error);
    throw Error(ErrorKind::hosts,
                fmt::format("sbatch did not take {}: {}", script.string(),
                            words.empty() ? "no answer" : words),
                "the folder holds all that is needed: correct job.sbatch and submit it by hand, "
                "or submit where Slurm's commands are installed");
  }
  const std::string answer = content(out);  // "123" or "123;cluster"
  return answer.substr(0, answer.find(';'));
}

}  // namespace

std::string batch_script(const SubmitOptions& options, const fs::path& folder) {
  std::string script =
      "#!/bin/bash\n# Written by `dstrain launch --slurm`. Recipe and program are copies: what is "
      "edited "
      "meanwhile changes nothing.\n";
  script += option("job-name", options.recipe_name);
  script += option("nodes", std::to_string(options.nodes));
  script += option("ntasks-per-node", std::to_string(std::max(1, options.ranks_per_node)));
  if (options.gpus_per_node > 0)
    script += option("gpus-per-node", std::to_string(options.gpus_per_node));
  script += option("time", options.time) + option("partition", options.partition) +
            option("account", options.account) + option("qos", options.qos);
  script += option("chdir", options.working_directory.string());
  script += option("output", without_patterns(folder) + "/slurm-%j.out");
  script += "#SBATCH --open-mode=append\n#SBATCH --requeue\n#SBATCH --no-kill\n";
  script += "#SBATCH --signal=B:USR1@120\n";
  for (const std::string& argument : options.sbatch) {
    refuse_newlines(argument);
    script += fmt::format("#SBATCH {}\n", shell_quote(argument));
  }

  std::vector<std::string> words = {
      shell_quote(frozen_program(options, folder).string()), "launch",
      shell_quote((folder / (options.recipe_name + ".yaml")).string()),
      "--run-name \"slurm-$SLURM_JOB_ID\" --resume auto"};
  for (const std::string& argument : options.launch) words.push_back(shell_quote(argument));
  script += fmt::format("\nset -- {}\n{}", fmt::join(words, " "), kRunAndRequeue);
  for (const fs::path& path : {folder, options.working_directory}) refuse_newlines(path.string());
  return script;
}

void refuse_secrets(const SubmitOptions& options) {
  const auto refuse = [](const char* what, const std::string& secret) {
    throw Error(
        ErrorKind::usage, fmt::format("{} would hold the value of the variable {}", what, secret),
        fmt::format("export it, and if need be say --env {}: sbatch hands the environment on",
                    secret));
  };
  for (const std::string& word : options.launch) {  // --env NAME=VALUE
    const auto equals = word.find('=');
    if (equals != std::string::npos && is_secret_name(word.substr(0, equals)))
      refuse("the batch script", word.substr(0, equals));
  }
  const auto named = std::ranges::find_if(options.recipe_variables, is_secret_name);
  if (named != options.recipe_variables.end()) refuse("the recipe", *named);
  const Redactor redactor(own_environment());
  const std::string script = batch_script(options, options.output);
  for (const auto& [text, what] :
       {std::pair(&script, "the batch script"), std::pair(&options.recipe, "the recipe")}) {
    const std::string secret = redactor.find(*text);
    if (!secret.empty()) refuse(what, secret);
  }
}

Submission submit(const SubmitOptions& options) {
  refuse_secrets(options);
  const fs::path output = fs::absolute(options.output).lexically_normal();
  Submission submission;
  submission.folder =
      make_dated_directory(output, options.recipe_name + "-slurm", std::time(nullptr));
  write_file_atomically(submission.folder / (options.recipe_name + ".yaml"), options.recipe);
  copy_tree(options, submission.folder);
  const fs::path script = submission.folder / "job.sbatch";
  write_file_atomically(script, batch_script(options, submission.folder));
  submission.job = call_sbatch(script);
  submission.run = output / ("slurm-" + submission.job);
  return submission;
}

}  // namespace dstrain::launcher
