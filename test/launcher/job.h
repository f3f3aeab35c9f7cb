#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "test/support/temp_dir.h"

namespace dstrain::launcher::test {

struct JobOptions {
  int ranks = 2;
  std::string resume = "never";
  std::vector<std::string> environment = {};  ///< NAME=VALUE, added
  bool closed_stdin = false;
  bool console_to_pipe_unread = false;      ///< standard output is a pipe without a reader
  std::vector<std::string> arguments = {};  ///< further options of `launch`
  std::vector<std::string> command = {};    ///< of a rank, instead of fake_rank and the script
  std::string program = FAKE_DSTRAIN;
};

/// A `fake_dstrain launch` in a process of its own, with its output in a file.
class Job {
 public:
  /// `script` is what fake_rank does.
  Job(const dstrain::test::TempDir& directory, const std::vector<std::string>& script,
      const JobOptions& options = {});
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  void signal(int number) const;
  /// Exit code as a shell shows it; fails the test after 20 s.
  int wait();
  /// Whether `text` came on the console within 5 s.
  [[nodiscard]] bool prints(const std::string& text) const;
  [[nodiscard]] std::string output() const;
  [[nodiscard]] std::filesystem::path run_directory() const;
  [[nodiscard]] std::string log(int rank) const;
  [[nodiscard]] nlohmann::json failure() const;
  [[nodiscard]] pid_t pid() const { return pid_; }
  /// Process id of the job's agent.
  [[nodiscard]] pid_t agent() const;
  /// Processes of the job, other than the controller, that are alive (not zombies).
  [[nodiscard]] std::vector<pid_t> alive() const;
  /// Whether none of them is left within `limit`.
  [[nodiscard]] bool is_gone(std::chrono::milliseconds limit) const;

 private:
  std::filesystem::path output_folder_;
  std::filesystem::path console_;
  int unread_pipe_ = -1;
  pid_t pid_ = -1;
};

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

[[nodiscard]] double seconds_since(std::chrono::steady_clock::time_point start);

}  // namespace dstrain::launcher::test
