#include "cmd/input_path.h"

#include <string>

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

}  // namespace dstrain
