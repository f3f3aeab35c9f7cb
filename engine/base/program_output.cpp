#include "engine/base/program_output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>

#include "engine/base/clock.h"
#include "engine/base/spawn.h"
#include "engine/base/unique_fd.h"

namespace dstrain {

std::optional<std::string> output_of(const std::vector<std::string>& command, double seconds,
                                     int error) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return std::nullopt;
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const pid_t child = spawn_program(command, {.out = writer.get(), .error = error});
  writer.reset();
  if (child < 0) return std::nullopt;

  const auto start = std::chrono::steady_clock::now();
  std::string text;
  bool ended = false;
  while (!ended) {
    const int left_ms = static_cast<int>((seconds - seconds_since(start)) * 1000);
    pollfd waited = {.fd = reader.get(), .events = POLLIN, .revents = 0};
    if (left_ms <= 0 || poll(&waited, 1, left_ms) <= 0) break;
    char buffer[65536];
    const ssize_t count = read(reader.get(), buffer, sizeof buffer);
    ended = count <= 0;
    if (count > 0) text.append(buffer, static_cast<std::size_t>(count));
    if (text.size() > (64u << 20)) break;
  }
  if (!ended) kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!ended || !WIFEXITED(status) || WEXITSTATUS(status) != 0) return std::nullopt;
  return text;
}

}  // namespace dstrain
