#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cmd/command.h"
#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/base/output.h"
#include "engine/weights/pickle_listing.h"
#include "engine/weights/torch_zip.h"
#include "engine/weights/weight_file.h"

namespace dstrain {
namespace {

struct InspectOptions {
  std::string source;
  bool json = false;
};

std::vector<ListedValue> values_of(const std::filesystem::path& path) {
  if (path.extension() != ".safetensors") return listing(TorchZip(path).root());
  std::vector<ListedValue> values;
  for (const auto& [name, entry] : open_weight_file(path)->entries()) {
    values.push_back({.path = name, .what = entry.dtype, .shape = entry.shape, .is_tensor = true});
  }
  return values;
}

void print_values(const std::vector<ListedValue>& values) {
  std::string text;
  for (const ListedValue& value : values) {
    text += fmt::format("{}{}{}", value.path, value.path.empty() ? "" : ": ", value.what);
    if (value.is_tensor) text += fmt::format(" [{}]", fmt::join(value.shape, ", "));
    if (!value.value.empty()) text += " " + value.value;
    text += '\n';
  }
  print_text(text);
}

void print_json(const std::vector<ListedValue>& values) {
  auto list = nlohmann::ordered_json::array();
  for (const ListedValue& value : values) {
    nlohmann::ordered_json item = {{"path", value.path}, {"type", value.what}};
    if (value.is_tensor) item["shape"] = value.shape;
    if (!value.is_tensor) item["value"] = value.value;
    list.push_back(std::move(item));
  }
  print_text("{}\n", json_text(list, 2));
}

int inspect(const InspectOptions& options) {
  if (path_kind(options.source, ErrorKind::usage) == PathKind::nothing)
    throw Error(ErrorKind::usage, fmt::format("there is no {}", options.source));
  const std::vector<ListedValue> values = values_of(options.source);
  options.json ? print_json(values) : print_values(values);
  return 0;
}

}  // namespace

Command add_checkpoint_inspect(CLI::App& root) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* app = root.add_subcommand(
      "inspect",
      "Say what a file of torch.save (.pt, .pth, .bin) or a .safetensors file holds: tensors with "
      "type and shape, and other values.\n"
      "Nothing of the file is executed: of an object its class is shown and what it was made of.\n"
      "Example: dstrain checkpoint inspect global_step100/mp_rank_00_model_states.pt");
  app->add_option("source", options->source, "The file.")->required();
  app->add_flag("--json", options->json, "Print a JSON array for programs.");
  return {app, [options] { return inspect(*options); }};
}

}  // namespace dstrain
