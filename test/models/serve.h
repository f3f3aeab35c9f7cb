#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

namespace dstrain::test {

/// The main of a probe that a script asks many times: loading LibTorch takes longer than most
/// answers. With arguments it is `answer` of these. Without, each line of stdin is a request,
/// fields between tabs: a file for what the answer prints, one for its errors, and its arguments.
/// It is answered in a process of its own, whose exit code then is a line of stdout; test/models/
/// probes.py asks so.
inline int serve(int argc, char** argv, int (*answer)(int argc, char** argv)) {
  if (argc > 1) return answer(argc, argv);
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<std::string> words = {argv[0]};
    for (std::size_t begin = 0; begin <= line.size();) {
      const std::size_t end = std::min(line.find('\t', begin), line.size());
      words.push_back(line.substr(begin, end - begin));
      begin = end + 1;
    }
    const pid_t child = ::fork();
    if (child == 0) {
      if (words.size() < 3) std::_Exit(64);
      for (const int stream : {1, 2}) {
        const std::string& path = words[static_cast<std::size_t>(stream)];
        const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (file < 0 || ::dup2(file, stream) < 0) std::_Exit(74);
      }
      words.erase(words.begin() + 1, words.begin() + 3);
      std::vector<char*> arguments;
      for (std::string& word : words) arguments.push_back(word.data());
      const int code = answer(static_cast<int>(arguments.size()), arguments.data());
      std::fflush(nullptr);
      std::_Exit(code);
    }
    int status = 0;
    if (child < 0 || ::waitpid(child, &status, 0) != child) return 71;
    std::printf("%d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace dstrain::test
