#include "engine/base/pmix_exchange.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/module.h"
#include "engine/base/spawn.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* kProgram = "dstrain-pmix";
constexpr const char* kHint =
    "set MASTER_ADDR and MASTER_PORT for every rank, or run `dstrain launch` once for all nodes";
constexpr std::size_t kMaxValueBytes = 4096;
constexpr milliseconds kFarewell{2000};  ///< PMIx_Finalize has been seen to hang

fs::path find_program() {
  if (const fs::path file = find_module(kProgram); file.has_parent_path()) return file;
  throw Error(ErrorKind::hosts,
              fmt::format("{} is not in lib/dstrain of {}", kProgram,
                          tree_of(fs::read_symlink("/proc/self/exe")).string()),
              kHint);
}

std::pair<int, int> open_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw Error(ErrorKind::internal, fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  }
  return {ends[0], ends[1]};
}

/// Starts the program with the given standard streams; what PMIx prints by itself is of no use.
pid_t spawn_helper(const std::string& program, milliseconds limit, int in, int out) {
  const pid_t pid =
      spawn_program({program, std::to_string(limit.count() / 1000 + 5)}, {.in = in, .out = out});
  if (pid >= 0) return pid;
  throw Error(ErrorKind::hosts, fmt::format("cannot start {}: {}", program, std::strerror(errno)),
              kHint);
}

/// The program's one line; what has come when it ends or the time is up.
std::string read_answer(int fd, Clock::time_point deadline, bool& timed_out) {
  std::string text;
  std::array<char, 1024> block{};
  while (text.find('\n') == std::string::npos) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
    pollfd entry{fd, POLLIN, 0};
    timed_out = left <= 0 || ::poll(&entry, 1, static_cast<int>(left)) == 0;
    if (timed_out) break;
    const ssize_t got = ::read(fd, block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(block.data(), static_cast<std::size_t>(got));
  }
  return text.substr(0, text.find('\n'));
}

}  // namespace

PmixHelper::~PmixHelper() {
  if (input_ >= 0) ::close(input_);
  if (pid_ <= 0) return;
  const auto deadline = Clock::now() + kFarewell;
  pid_t ended = 0;
  while ((ended = ::waitpid(pid_, nullptr, WNOHANG)) == 0 && Clock::now() < deadline) {
    ::poll(nullptr, 0, 2);
  }
  if (ended != 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

PmixHelper::PmixHelper(PmixHelper&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), input_(std::exchange(other.input_, -1)) {}

PmixHelper& PmixHelper::operator=(PmixHelper&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(input_, other.input_);
  return *this;
}

std::optional<int> pmix_rank() {
  const char* job = std::getenv("PMIX_NAMESPACE");
  const char* text = std::getenv("PMIX_RANK");
  if (job == nullptr || text == nullptr) return std::nullopt;
  int rank = -1;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), rank);
  if (error != std::errc{} || *end != '\0' || rank < 0) return std::nullopt;
  return rank;
}

std::optional<PmixAnswer> pmix_exchange(const std::string& value, milliseconds limit) {
  if (!pmix_rank()) return std::nullopt;
  DSTRAIN_CHECK(value.size() <= kMaxValueBytes && value.find('\n') == std::string::npos,
                "what PMIx exchanges is one line");
  const fs::path program = find_program();
  const auto deadline = Clock::now() + limit;
  const auto [their_in, our_out] = open_pipe();
  const auto [our_in, their_out] = open_pipe();
  pid_t pid = -1;
  try {
    pid = spawn_helper(program.string(), limit, their_in, their_out);
  } catch (...) {
    for (const int fd : {their_in, our_out, our_in, their_out}) ::close(fd);
    throw;
  }
  ::close(their_in);
  ::close(their_out);
  PmixHelper helper(pid, our_out);
  const std::string line = value + "\n";
  // An empty pipe takes it whole. A program that is gone already has closed its standard output.
  struct sigaction ignore{};
  struct sigaction previous{};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &previous);
  (void)!::write(our_out, line.data(), line.size());
  ::sigaction(SIGPIPE, &previous, nullptr);
  bool timed_out = false;
  const std::string answer = read_answer(our_in, deadline, timed_out);
  ::close(our_in);
  if (timed_out) {
    // The helper ends by itself with its input: killed, it would take the step with it.
    throw Error(ErrorKind::hosts,
                fmt::format("task 0 of this srun or mpirun gave no address by PMIx in {} s",
                            static_cast<double>(limit.count()) / 1000),
                "it may have died before it could; its own output says why");
  }
  std::istringstream words(answer);
  std::string kind;
  words >> kind;
  if (kind == "unreachable") return std::nullopt;
  PmixAnswer result{.value = {}, .helper = std::move(helper)};
  if (kind == "ok" &&
      words >> result.rank >> result.size >> result.local_rank >> result.local_size) {
    words.get();
    std::getline(words, result.value);
    return result;
  }
  const std::string reason =
      answer.empty() ? fmt::format("{} does not run here", program.string()) : answer;
  throw Error(ErrorKind::hosts, "no exchange by PMIx: " + reason, kHint);
}

}  // namespace dstrain
