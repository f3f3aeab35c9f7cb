#include "launcher/job/rank_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/job_environment.h"
#include "engine/base/redact.h"
#include "launcher/hosts/affinity.h"
#include "launcher/transport/meeting.h"

namespace dstrain::launcher {
namespace {

constexpr int kPipeBytes = 1 << 20;

std::string name_of(const std::string& entry) { return entry.substr(0, entry.find('=') + 1); }

/// What torchrun or another agent of ours around this process has told it of itself; the rank would
/// take that for its own.
bool names_outer_rank(std::string_view entry) {
  namespace env = job_environment;
  if (entry.starts_with("TORCHELASTIC_")) return true;
  const std::string_view name = entry.substr(0, entry.find('='));
  namespace join = join_variable;
  constexpr std::array<std::string_view, 22> kNames = {
      env::kRank,          env::kLocalRank,    env::kWorldSize,  env::kLocalWorldSize,
      env::kMasterAddress, env::kMasterPort,   env::kMasterFd,   env::kJobSecret,
      env::kAttempt,       env::kRunDirectory, env::kRankRecord, env::kReportFd,
      "GROUP_RANK",        "GROUP_WORLD_SIZE", "ROLE_RANK",      "ROLE_WORLD_SIZE",
      "ROLE_NAME",         join::kIndex,       join::kHosts,     join::kController,
      join::kSecret,       join::kSecretFile};
  return std::ranges::find(kNames, name) != kNames.end();
}

/// This process's environment with `added` over it, without what is of another job.
std::vector<std::string> merge_environment(const std::vector<std::string>& added) {
  std::vector<std::string> merged;
  for (std::string& entry : own_environment()) {
    bool replaced = names_outer_rank(entry);
    for (const std::string& other : added) replaced = replaced || entry.starts_with(name_of(other));
    if (!replaced) merged.push_back(std::move(entry));
  }
  merged.insert(merged.end(), added.begin(), added.end());
  return merged;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

void reset_signals() {
  for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

void keep_over_exec(int fd) {
  if (fd >= 0) ::fcntl(fd, F_SETFD, 0);
}

}  // namespace

RankProcess start_rank(const RankStart& start) {
  namespace env = job_environment;
  DSTRAIN_CHECK(!start.command.empty(), "a rank needs a command");
  RankProcess rank;
  Pipe output = make_pipe();
  ::fcntl(output.write.get(), F_SETPIPE_SZ, kPipeBytes);
  Pipe report;
  if (start.rank_zero) report = make_pipe();
  // A record in memory leaves nothing behind, whichever process is killed.
  const UniqueFd record(::memfd_create("dstrain-rank-record", MFD_CLOEXEC));
  if (!record) fail_system("make a rank record");
  rank.record = RankRecordFile::create(fmt::format("/proc/self/fd/{}", record.get()));
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null) fail_system("open /dev/null");

  std::vector<std::string> added = start.environment;
  added.push_back(fmt::format("{}=/proc/self/fd/{}", env::kRankRecord, record.get()));
  if (report.write) added.push_back(fmt::format("{}={}", env::kReportFd, report.write.get()));
  if (start.master_fd >= 0) added.push_back(fmt::format("{}={}", env::kMasterFd, start.master_fd));
  std::vector<std::string> environment = merge_environment(added);
  std::vector<std::string> command = start.command;
  const std::vector<char*> argv = pointers(command);
  const std::vector<char*> envp = pointers(environment);

  const pid_t agent = ::getpid();
  rank.pid = ::fork();
  if (rank.pid < 0) fail_system("start a rank");
  if (rank.pid == 0) {
    ::setsid();
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    // The agent may have died before the line above took effect.
    if (::getppid() != agent) ::_exit(1);
    // Where only ancestors may trace (yama's ptrace_scope 1): the agent's helpers take stacks of a
    // rank that hangs. Kept over exec; refused where there is no yama, which is as good.
    ::prctl(PR_SET_PTRACER, agent);
    reset_signals();
    (void)bind_to_cpus(start.cpus);
    ::dup2(null.get(), STDIN_FILENO);
    ::dup2(output.write.get(), STDOUT_FILENO);
    ::dup2(output.write.get(), STDERR_FILENO);
    ::syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);
    keep_over_exec(record.get());
    keep_over_exec(report.write.get());
    keep_over_exec(start.master_fd);
    ::execvpe(argv.front(), argv.data(), envp.data());
    const int error = errno;
    // The agent has one thread, so this child of its fork may allocate.
    rank.record.fail(fmt::format("cannot run {}: {}", start.command.front(), std::strerror(error)),
                     error == ENOENT ? 127 : 126);
    ::_exit(error == ENOENT ? 127 : 126);
  }
  rank.output = std::move(output.read);
  rank.report = std::move(report.read);
  set_nonblocking(rank.output.get());
  if (rank.report) set_nonblocking(rank.report.get());
  return rank;
}

}  // namespace dstrain::launcher
