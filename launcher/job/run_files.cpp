#include "launcher/job/run_files.h"

#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/run_layout.h"

namespace dstrain::launcher {

[[noreturn]] void refuse_secret(const std::string& file, const std::string& variable) {
  throw Error(ErrorKind::usage,
              fmt::format("{} would hold the value of the environment variable {}", file, variable),
              "secrets reach the ranks by environment; leave them out of the recipe");
}

void write_run_files(const RunDirectory& run, const std::vector<RunFile>& files) {
  for (const RunFile& file : files) {
    const std::filesystem::path path = run.path / file.name;
    if (std::filesystem::exists(path) && read_file(path) == file.content) continue;
    keep_previous(path);
    write_file_atomically(path, file.content, file.readers);
  }
  keep_previous(RunLayout(run.path).failure());
}

}  // namespace dstrain::launcher
