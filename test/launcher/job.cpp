#include "test/launcher/job.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <csignal>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "launcher/base/process_tree.h"

namespace dstrain::launcher::test {
namespace {

using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;
using std::chrono::milliseconds;

std::string slurp(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

bool is_zombie(pid_t pid) { return describe_process(pid).find("state Z") != std::string::npos; }

}  // namespace

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Job::Job(const dstrain::test::TempDir& directory, const std::vector<std::string>& script,
         const JobOptions& options)
    : output_folder_(directory / "runs"), console_(directory / "console") {
  std::vector<std::string> words = {options.program, "launch",
                                    "--output",      output_folder_.string(),
                                    "--ranks",       std::to_string(options.ranks),
                                    "--resume",      options.resume};
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  words.emplace_back("--");
  if (options.command.empty()) {
    words.emplace_back(FAKE_RANK);
    words.insert(words.end(), script.begin(), script.end());
  } else {
    words.insert(words.end(), options.command.begin(), options.command.end());
  }
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::array<int, 2> pipe{-1, -1};
  if (options.console_to_pipe_unread && ::pipe2(pipe.data(), O_CLOEXEC) != 0)
    throw std::runtime_error("pipe2");
  unread_pipe_ = pipe[0];
  // Marks every process of the job, the agent too.
  const std::string mark = "DSTRAIN_TEST_JOB=" + output_folder_.string();
  pid_ = ::fork();
  if (pid_ == 0) {
    ::putenv(const_cast<char*>(mark.c_str()));
    for (const std::string& entry : options.environment) ::putenv(const_cast<char*>(entry.c_str()));
    const int out =
        pipe[1] >= 0 ? pipe[1] : ::open(console_.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(out, STDERR_FILENO);
    ::close(out);
    if (options.closed_stdin) ::close(STDIN_FILENO);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  if (pipe[1] >= 0) ::close(pipe[1]);
}

Job::~Job() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  if (unread_pipe_ >= 0) ::close(unread_pipe_);
}

void Job::signal(int number) const { ::kill(pid_, number); }

int Job::wait() {
  const auto deadline = Clock::now() + std::chrono::seconds(20);
  int status = 0;
  while (::waitpid(pid_, &status, WNOHANG) == 0) {
    if (Clock::now() > deadline)
      throw std::runtime_error("the job does not end; it printed:\n" + output());
    std::this_thread::sleep_for(milliseconds(2));
  }
  pid_ = -1;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

bool Job::prints(const std::string& text) const {
  const auto deadline = Clock::now() + std::chrono::seconds(5);
  while (output().find(text) == std::string::npos) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

std::string Job::output() const { return slurp(console_); }

fs::path Job::run_directory() const {
  for (const auto& entry : fs::directory_iterator(output_folder_)) return entry.path();
  throw std::runtime_error("no run directory");
}

std::string Job::log(int rank) const {
  return slurp(run_directory() / "ranks" / ("rank000" + std::to_string(rank) + ".log"));
}

nlohmann::json Job::failure() const {
  return nlohmann::json::parse(slurp(run_directory() / "failure.json"));
}

pid_t Job::agent() const {
  const std::vector<pid_t> children = children_of(pid_);
  if (children.size() != 1) throw std::runtime_error("a controller has one child, its agent");
  return children.front();
}

std::vector<pid_t> Job::alive() const {
  std::vector<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    pid_t pid = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), pid).ec != std::errc{}) continue;
    const bool ours =
        slurp(entry.path() / "environ").find(output_folder_.string()) != std::string::npos;
    if (ours && pid != pid_ && !is_zombie(pid)) found.push_back(pid);
  }
  return found;
}

bool Job::is_gone(milliseconds limit) const {
  const auto deadline = Clock::now() + limit;
  while (!alive().empty()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

}  // namespace dstrain::launcher::test
