#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>

#include "cmd/command.h"
#include "engine/base/error.h"
#include "engine/base/output.h"
#include "engine/base/run_layout.h"
#include "engine/base/units.h"
#include "engine/checkpoint/checkpoint.h"

namespace dstrain {
namespace {

struct VerifyCheckpointOptions {
  std::string path;
};

/// Every checkpoint of a run, or the one that `path` is.
std::vector<CheckpointInfo> verify_all(const std::filesystem::path& path) {
  const std::filesystem::path folder = find_checkpoints_folder(path);
  std::vector<CheckpointInfo> infos = list_checkpoints(folder, true);
  if (infos.empty() && folder == path) infos.push_back(inspect_checkpoint(path, true));
  return infos;
}

int verify(const VerifyCheckpointOptions& options) {
  const auto infos = verify_all(options.path);
  int num_bad = 0;
  for (const CheckpointInfo& info : infos) {
    if (info.valid) {
      print_text("ok   {}: step {}, {} in {} files, every byte as written\n", info.path.string(),
                 info.step, format_bytes(info.bytes), info.files);
    } else {
      ++num_bad;
      print_text("BAD  {}: {}\n", info.path.string(), info.problem);
    }
  }
  if (infos.empty()) {
    print_text("no checkpoint in {}\n", options.path);
    return exit_code(ErrorKind::checkpoint);
  }
  return num_bad == 0 ? 0 : exit_code(ErrorKind::checkpoint);
}

}  // namespace

Command add_checkpoint_verify(CLI::App& root) {
  auto options = std::make_shared<VerifyCheckpointOptions>();
  CLI::App* app =
      root.add_subcommand("verify",
                          "Read every byte of a run's checkpoints, or of one checkpoint, and "
                          "compare with the hashes in its manifest.\n"
                          "Exit code 0 when all are as written, 74 when one is not; the line says "
                          "which file and what.\n"
                          "Example: dstrain checkpoint verify "
                          "runs/quickstart-20261121-101500-3fa2c1/checkpoints/step-00000100");
  app->add_option("path", options->path,
                  "Run directory, its checkpoints folder, or one checkpoint.")
      ->required();
  return {app, [options] { return verify(*options); }};
}

}  // namespace dstrain
