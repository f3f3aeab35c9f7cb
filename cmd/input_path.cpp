#include "cmd/input_path.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "engine/base/input_file.h"

namespace dstrain {

CLI::Validator input_file() {
  return {[](const std::string& path) -> std::string {
            try {
              (void)open_input_file(path);
              return {};
            } catch (const Error& error) {
              return error.what();
            }
          },
          "FILE"};
}

CLI::Validator input_folder() {
  return {[](const std::string& path) -> std::string {
            try {
              if (path_kind(path) == PathKind::folder) return {};
              return "there is no folder " + shown_path(path);
            } catch (const Error& error) {
              return error.what();
            }
          },
          "DIR"};
}

CLI::Validator not_empty() {
  return {[](const std::string& text) { return text.empty() ? "is empty" : ""; }, ""};
}

void refuse_own_input(const std::string& option, const std::string& output,
                      const std::vector<std::string>& inputs) {
  for (const std::string& input : inputs) {
    std::error_code absent;
    if (input.empty() || output.empty() || !std::filesystem::equivalent(input, output, absent))
      continue;
    throw Error(ErrorKind::usage,
                fmt::format("{} {} is read by this command, and would be lost", option, output),
                "name another file");
  }
}

}  // namespace dstrain
