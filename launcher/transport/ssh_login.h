#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/base/child_process.h"
#include "launcher/base/child_stderr.h"
#include "launcher/transport/transport.h"

namespace dstrain::launcher {

/// State of one host in the ssh transport.
struct SshLogin {
  using Time = Transport::Time;
  enum class Stage {
    waiting,  ///< for its turn, with `task` to do next
    opening,  ///< ssh runs, the agent's hello has not come
    copying,  ///< ssh runs and takes in our tree
    open,     ///< the channel was handed over
    over
  };
  enum class Task { agent, copy };

  NodeHost host;
  Stage stage = Stage::waiting;
  Task task = Task::agent;
  int tries = 0;                  ///< of this task
  bool copied = false;            ///< the host has our tree; it can send it on
  int source = -1;                ///< copying: index of the login that sends it on; -1: we send it
  Time due = {};                  ///< waiting: not before
  Time limit = Time::max();       ///< opening, copying
  std::optional<Time> closed_at;  ///< when the output of ssh ended
  std::optional<Time> banner_at;  ///< when something else than a hello came
  bool look_again = false;        ///< part of a frame has come, which poll would report for ever
  UniqueFd socket;                ///< our end of ssh's standard input and output
  ChildStderr standard_error;
  std::string banner;
  ChildProcess ssh;
  ChildProcess packer;
};

/// What the first bytes from an agent are.
enum class FirstFrame { unfinished, hello, none };
/// `ended`: no more will come.
[[nodiscard]] FirstFrame first_frame(std::string_view bytes, bool ended);

/// Command line of ssh with its options; an empty `config` leaves the user's own.
[[nodiscard]] std::vector<std::string> ssh_words(std::chrono::seconds connect_timeout,
                                                 const std::filesystem::path& config);
/// Options and arguments of ssh that say where to log in.
[[nodiscard]] std::vector<std::string> ssh_destination(const Host& host);

}  // namespace dstrain::launcher
