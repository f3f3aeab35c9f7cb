#include "launcher/job/submit.h"

#include <fcntl.h>
#include <fmt/format.h>
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
#include "launcher/transport/ship.h"

namespace dstrain::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kSbatchLimit{60};

void copy_tree(const SubmitOptions& options, const fs::path& folder) {
  const ShipTree tree = ship_tree(options.program);
  const fs::path target = folder / "program";
  for (const std::string& name : tree.names) {
    fs::create_directories((target / name).parent_path());
    fs::copy(tree.root / name, target / name, fs::copy_options::recursive);
  }
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

/// Name of the first secret that a line NAME=VALUE of a shell spells out; empty: none.
std::string secret_of_setup(const std::string& setup) {
  const auto in_name = [](char c) {
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  for (auto at = setup.find('='); at != std::string::npos; at = setup.find('=', at + 1)) {
    std::size_t begin = at;
    while (begin > 0 && in_name(setup[begin - 1])) --begin;
    const std::size_t value = setup.find_first_not_of("\"'", at + 1);
    const bool spelled = value != std::string::npos &&
                         std::string_view("$` \t\n;").find(setup[value]) == std::string_view::npos;
    std::string name = setup.substr(begin, at - begin);
    if (spelled && is_secret_name(name)) return name;
  }
  return {};
}

}  // namespace

void refuse_secrets_of(const PublicText& text, const std::string& hint) {
  const auto refuse = [&hint](const std::string& what, const std::string& secret) {
    throw Error(ErrorKind::usage,
                fmt::format("{} would hold the value of the variable {}", what, secret),
                fmt::format(fmt::runtime(hint), secret));
  };
  for (const std::string& word : text.words) {  // --env NAME=VALUE
    const auto equals = word.find('=');
    if (equals != std::string::npos && is_secret_name(word.substr(0, equals)))
      refuse(text.what, word.substr(0, equals));
  }
  const auto named = std::ranges::find_if(text.recipe_variables, is_secret_name);
  if (named != text.recipe_variables.end()) refuse("the recipe", *named);
  const std::string secret = Redactor(own_environment()).find(text.text);
  if (!secret.empty()) refuse(text.what, secret);
}

void refuse_secrets(const SubmitOptions& options) {
  constexpr const char* kHint =
      "export it, and if need be say --env {}: sbatch hands the environment on";
  if (const std::string secret = secret_of_setup(options.setup); !secret.empty()) {
    throw Error(ErrorKind::usage,
                fmt::format("the batch script would hold the value of the variable {}", secret),
                fmt::format(kHint, secret));
  }
  const std::string script = batch_script(options, options.output);
  refuse_secrets_of({.text = script,
                     .what = "the batch script",
                     .words = options.launch,
                     .recipe_variables = options.recipe_variables},
                    kHint);
  refuse_secrets_of({.text = options.recipe, .what = "the recipe"}, kHint);
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
