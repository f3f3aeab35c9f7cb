#include <fmt/format.h>

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/import/import.h"
#include "launcher/hosts/allocation.h"
#include "launcher/hosts/placement.h"

using Json = nlohmann::json;

namespace {

dstrain::importing::ImportOptions options_of(const Json& given) {
  dstrain::importing::ImportOptions options;
  options.command = given.value("command", "");
  options.deepspeed = given.value("deepspeed", "");
  options.trainer = given.value("trainer", "");
  options.accelerate = given.value("accelerate", "");
  options.ranks = given.value("ranks", 0);
  options.settings = given.value("settings", std::vector<std::string>());
  options.open = [](const std::string& path) { return dstrain::read_file(path, 1 << 20); };
  return options;
}

/// Who runs where if the words of the launch are given on a machine "me" with `gpus` GPUs.
Json placement_of(const std::vector<std::string>& words, int gpus) {
  dstrain::launcher::HostRequest request;
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i] == "--ranks") request.ranks = std::stoi(words[i + 1]);
    if (words[i] == "--hosts") request.hosts = words[i + 1];
    if (words[i] == "--hostfile") request.hostfile = words[i + 1];
    if (words[i] == "--include") request.include = words[i + 1];
    if (words[i] == "--exclude") request.exclude = words[i + 1];
  }
  const dstrain::launcher::Machine machine = {
      .host = "me", .cores = 8, .gpus = gpus, .gpus_installed = gpus};
  const auto allocation =
      dstrain::launcher::allocate(request, machine, [](const char*) { return nullptr; });
  Json nodes = Json::array();
  for (const auto& node : dstrain::launcher::place(allocation, request.ranks).nodes)
    nodes.push_back({node.host.name, node.num_ranks, node.host.devices});
  return nodes;
}

Json answer_to(const Json& given) {
  Json answer;
  try {
    const auto imported = dstrain::importing::import_settings(options_of(given));
    answer["recipe"] = imported.recipe;
    answer["launch"] = imported.launch;
    answer["unread"] = imported.unread;
    answer["notes"] = imported.notes;
    answer["placement"] = placement_of(imported.launch, given.value("gpus", 0));
  } catch (const dstrain::Error& error) {
    answer["error"] = error.what();
  }
  return answer;
}

}  // namespace

/// import_probe FILE: for each line of FILE, the options of an import as JSON, prints a line of
/// JSON: the recipe, the words of the launch and what they start, or the error.
int main(int argc, char** argv) {
  if (argc != 2) return 64;
  std::ifstream lines(argv[1]);
  for (std::string line; std::getline(lines, line);)
    std::cout << answer_to(Json::parse(line)).dump(-1, ' ', true, Json::error_handler_t::replace)
              << '\n';
  return 0;
}
