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
#include "engine/base/json_path.h"
#include "engine/base/output.h"
#include "engine/base/run_layout.h"
#include "engine/checkpoint/foreign_checkpoint.h"
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
  const std::unique_ptr<WeightFile> file = open_weight_file(path);
  for (const auto& [name, entry] : file->entries()) {
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

ForeignCheckpoint open_folder(const std::filesystem::path& folder) {
  if (path_exists(folder / run_file::kManifest)) {
    throw Error(ErrorKind::usage, fmt::format("{} is a checkpoint of dstrain", folder.string()),
                "`dstrain checkpoint verify` checks it, `dstrain checkpoint list` shows those of a "
                "run");
  }
  return open_foreign(folder, {.order = {}, .moments = ForeignHints::Moments::named});
}

/// "exp_avg, exp_avg_sq", or why none are listed.
std::string moments_of(const ForeignCheckpoint& found) {
  if (!found.has_moments) return "none";
  if (found.moments.empty()) return "by position, which `checkpoint import` matches to the model";
  std::vector<std::string> names;
  for (const auto& [moment, tensors] : found.moments) names.push_back(moment);
  return fmt::format("{} of {} tensors", fmt::join(names, ", "),
                     found.moments.begin()->second.size());
}

void print_checkpoint(const ForeignCheckpoint& found) {
  std::string text = fmt::format("{}: {}{}\n", found.path.string(), found.layout,
                                 found.ranks > 1 ? fmt::format(" on {} ranks", found.ranks) : "");
  text += fmt::format("step {} ({} skipped)", found.step, found.skipped_steps);
  if (found.samples >= 0) text += fmt::format(", {} samples", found.samples);
  text += fmt::format(", loss scale {}\nmoments: {}\n", found.loss_scale, moments_of(found));
  for (const std::string& note : found.notes) text += fmt::format("note: {}\n", note);
  for (const auto& [name, source] : found.shared)
    text += fmt::format("{}: the same as {}\n", name, source);
  for (const auto& [name, tensor] : found.weights) {
    if (found.shared.contains(name)) continue;
    text += fmt::format("{}: {} [{}]\n", name, tensor.dtype(), fmt::join(tensor.shape(), ", "));
  }
  print_text(text);
}

void print_checkpoint_json(const ForeignCheckpoint& found) {
  nlohmann::ordered_json root = {{"path", found.path.string()},
                                 {"layout", found.layout},
                                 {"ranks", found.ranks},
                                 {"step", found.step},
                                 {"skipped_steps", found.skipped_steps},
                                 {"samples", found.samples},
                                 {"batch", found.batch},
                                 {"loss_scale", found.loss_scale},
                                 {"notes", found.notes},
                                 {"shared", found.shared}};
  put_path(root, "path", found.path);
  auto& tensors = root["tensors"] = nlohmann::ordered_json::object();
  for (const auto& [name, tensor] : found.weights) {
    auto moments = nlohmann::ordered_json::array();
    for (const auto& [moment, values] : found.moments) {
      if (values.contains(name)) moments.push_back(moment);
    }
    tensors[name] = {{"type", tensor.dtype()}, {"shape", tensor.shape()}, {"moments", moments}};
  }
  print_text("{}\n", json_text(root, 2));
}

int inspect(const InspectOptions& options) {
  const PathKind kind = path_kind(options.source, ErrorKind::usage);
  if (kind == PathKind::nothing)
    throw Error(ErrorKind::usage, fmt::format("there is no {}", options.source));
  if (kind == PathKind::folder) {
    const ForeignCheckpoint found = open_folder(options.source);
    options.json ? print_checkpoint_json(found) : print_checkpoint(found);
    return 0;
  }
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
      "type and shape, and other values; of a folder that DeepSpeed, torch's FSDP or a Trainer "
      "wrote: layout, ranks, step, samples, tensors and moments.\n"
      "Nothing of the file is executed: of an object its class is shown and what it was made of.\n"
      "Example: dstrain checkpoint inspect global_step100/mp_rank_00_model_states.pt");
  app->add_option("source", options->source, "The file or folder.")->required();
  app->add_flag("--json", options->json,
                "Print JSON for programs: an array for a file, an object for a folder.");
  return {app, [options] { return inspect(*options); }};
}

}  // namespace dstrain
