#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "cmd/command.h"
#include "engine/base/json.h"
#include "engine/base/json_path.h"
#include "engine/base/output.h"
#include "engine/base/run_layout.h"
#include "engine/base/units.h"
#include "engine/checkpoint/checkpoint.h"

namespace dstrain {
namespace {

struct ListOptions {
  std::string run;
  bool json = false;
};

void print_json(const std::vector<CheckpointInfo>& infos) {
  auto list = nlohmann::ordered_json::array();
  for (const CheckpointInfo& info : infos) {
    nlohmann::ordered_json one = {{"step", info.step}};
    put_path(one, "path", info.path);
    one.update({{"valid", info.valid},
                {"problem", info.problem},
                {"verified", info.verified},
                {"damage", info.damage},
                {"bytes", info.bytes},
                {"files", info.files},
                {"world_size", info.world_size}});
    list.push_back(std::move(one));
  }
  print_text("{}\n", json_text(list, 2));
}

int list(const ListOptions& options) {
  const auto folder = find_checkpoints_folder(options.run);
  const auto infos = list_checkpoints(folder, false);
  if (options.json) {
    print_json(infos);
    return 0;
  }
  if (infos.empty()) {
    print_text("no checkpoint in {}\n", folder.string());
    return 0;
  }
  print_text("{:>10}  {:>10}  {:>5}  {:>5}  {}\n", "step", "size", "files", "ranks", "state");
  for (const CheckpointInfo& info : infos) {
    if (info.valid) {
      print_text("{:>10}  {:>10}  {:>5}  {:>5}  {}\n", info.step, format_bytes(info.bytes),
                 info.files, info.world_size,
                 info.verified         ? "complete, verified after the save"
                 : info.damage.empty() ? "complete"
                                       : "DAMAGED: " + info.damage);
    } else {
      print_text("{:>10}  {:>10}  {:>5}  {:>5}  INVALID: {}\n", info.step, "-", "-", "-",
                 info.problem);
    }
  }
  print_text("Sizes were checked; `dstrain checkpoint verify {}` also checks every byte.\n",
             options.run);
  return 0;
}

}  // namespace

Command add_checkpoint_list(CLI::App& root) {
  auto options = std::make_shared<ListOptions>();
  CLI::App* app = root.add_subcommand(
      "list",
      "List the checkpoints of a run, newest first, and whether each is complete.\n"
      "Example: dstrain checkpoint list runs/quickstart-20261121-101500-3fa2c1");
  app->add_option("run", options->run, "Run directory or its checkpoints folder.")->required();
  app->add_flag(
      "--json", options->json,
      "Print a JSON array for programs. A path that is not UTF-8 stands under path_hex, too.");
  return {app, [options] { return list(*options); }};
}

}  // namespace dstrain
