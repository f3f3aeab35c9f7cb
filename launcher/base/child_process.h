#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace dstrain::launcher {

/// A program of this machine that carries something for us (ssh, tar). It has a session of its own,
/// so that Ctrl-C reaches the controller alone, default signals, no descriptor but its three
/// streams, and dies with this process.
class ChildProcess {
 public:
  /// Descriptors above 2 that become its standard streams; they stay the caller's.
  struct Streams {
    int in = -1;
    int out = -1;
    int error = -1;
  };

  ChildProcess() = default;
  /// Searches PATH for command[0]. When that cannot be started, the child says so on its standard
  /// error ("dstrain: cannot start ssh") and exits with 255. Error{internal} when fork fails.
  ChildProcess(const std::vector<std::string>& command, Streams streams);
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept { swap(other); }
  ChildProcess& operator=(ChildProcess&& other) noexcept {
    swap(other);
    return *this;
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  /// Whether it has ended, or was never started; does not wait.
  [[nodiscard]] bool ended();
  /// Waits for its end, then kills it and what is in its process group.
  void end(std::chrono::milliseconds limit);
  void kill() const;
  /// Sends it a signal, not what it has started.
  void send(int number) const;
  [[nodiscard]] int exit_code() const { return exit_code_; }  ///< valid when signal() is 0
  [[nodiscard]] int signal() const { return signal_; }

 private:
  void swap(ChildProcess& other) noexcept;
  void reap();

  pid_t pid_ = -1;
  int exit_code_ = 0;
  int signal_ = 0;
};

}  // namespace dstrain::launcher
