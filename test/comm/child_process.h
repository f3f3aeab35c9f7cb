#pragma once

#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace dstrain::test {

/// Starts this executable with the test case of that name and `variables` beside its environment.
/// The child closes `closed_fd`, where it is one.
inline pid_t start_child(std::string test_case, const std::map<std::string, std::string>& variables,
                         int closed_fd = -1) {
  std::vector<std::string> text;
  for (const auto& [name, value] : variables) text.push_back(name + "=" + value);
  std::vector<char*> environment;
  for (std::string& entry : text) environment.push_back(entry.data());
  for (char** entry = ::environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  environment.push_back(nullptr);
  std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  char* const arguments[] = {program.data(), test_case.data(), nullptr};
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (closed_fd >= 0) ::close(closed_fd);
    ::execve(program.c_str(), arguments, environment.data());
    ::_exit(127);
  }
  return pid;
}

}  // namespace dstrain::test
