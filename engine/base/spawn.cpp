#include "engine/base/spawn.h"

#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace dstrain {

pid_t spawn_program(std::vector<std::string> command, const StandardStreams& streams) {
  posix_spawn_file_actions_t actions{};
  posix_spawnattr_t attributes{};
  ::posix_spawn_file_actions_init(&actions);
  const auto set = [&actions](int stream, int fd, int mode) {
    if (fd >= 0) {
      ::posix_spawn_file_actions_adddup2(&actions, fd, stream);
    } else {
      ::posix_spawn_file_actions_addopen(&actions, stream, "/dev/null", mode, 0);
    }
  };
  set(STDIN_FILENO, streams.in, O_RDONLY);
  set(STDOUT_FILENO, streams.out, O_WRONLY);
  set(STDERR_FILENO, streams.error, O_WRONLY);
  // One by one, as glibc before 2.34 cannot close all above a number; one that is closed by then is
  // no error.
  std::error_code unread;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", unread)) {
    const int fd = std::atoi(entry.path().filename().c_str());
    if (fd > STDERR_FILENO) ::posix_spawn_file_actions_addclose(&actions, fd);
  }
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, argv[0], &actions, &attributes, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  errno = error;
  return error == 0 ? pid : -1;
}

}  // namespace dstrain
