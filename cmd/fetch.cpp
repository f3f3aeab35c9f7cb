#include "engine/hub/fetch.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cmd/command.h"
#include "cmd/fetch_progress.h"
#include "engine/base/error.h"
#include "engine/base/output.h"
#include "engine/base/printable.h"
#include "engine/base/units.h"
#include "engine/base/words.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

struct FetchOptions {
  std::vector<std::string> what;
  fs::path to;
  bool offline = false;
  bool dry_run = false;
};

/// A name of the Hub and what of it is wanted.
struct Wanted {
  hub::HubName name;
  hub::Use use;
};

Wanted wanted_of(const std::string& word) {
  const auto name = hub::parse_hub_name(hub::is_bare_name(word) ? "hf://" + word : word);
  if (!name)
    throw Error(ErrorKind::usage, fmt::format("'{}' is no name of the Hub", shown(word, 200)),
                "write hf://ORG/NAME, hf://ORG/NAME@REVISION, hf://ORG/NAME/FILE or "
                "hf://datasets/ORG/NAME");
  return {*name, name->dataset ? hub::Use::text_data : hub::Use::weights};
}

void print_plan(const hub::FetchPlan& plan, const hub::HubPlaces& places) {
  print_text("{}\n", plan.name.text());
  for (const hub::HubFile& file : plan.files)
    print_text("  {:>12}  {}\n", format_bytes(file.size), file.path);
  const fs::path folder = plan.to.empty() ? places.cache : plan.to;
  const std::int64_t room = hub::free_bytes(folder);
  print_text("  {} file{}, {}, of which {} are to come; {} has {} free\n", plan.files.size(),
             plural(plan.files.size()), format_bytes(plan.bytes), format_bytes(plan.missing),
             folder.string(), room < 0 ? "an unknown size" : format_bytes(room));
}

int fetch(const FetchOptions& options) {
  hub::HubPlaces places = hub::hub_places();
  places.offline = places.offline || options.offline;
  std::vector<Wanted> all;
  for (const std::string& word : options.what) all.push_back(wanted_of(word));
  for (const Wanted& wanted : all) {
    hub::FetchPlan plan = hub::plan_fetch(places, wanted.name, wanted.use);
    if (!plan.not_asked.empty())
      print_error("note: {} as the cache has it: {}\n", wanted.name.text(), plan.not_asked);
    if (!options.to.empty()) {
      if (!plan.not_asked.empty())
        throw Error(ErrorKind::usage, "--to needs the Hub",
                    fmt::format("copy {} by `cp -rL`", plan.path.string()));
      plan.to = options.to;
      plan.path = plan.name.file.empty() ? options.to : options.to / plan.name.file;
    }
    if (options.dry_run) {
      print_plan(plan, places);
      continue;
    }
    fetch_with_progress(places, plan);
    print_text("{}\n", plan.path.string());
  }
  return 0;
}

}  // namespace

Command add_fetch(CLI::App& root) {
  auto options = std::make_shared<FetchOptions>();
  CLI::App* app = root.add_subcommand(
      "fetch",
      "Download models and data of the Hugging Face Hub by name into its cache, where Python finds "
      "them, too.\nEach file is checked by its digest; what was cut or killed goes on where it "
      "ended. Prints the folder.");
  app->footer(
      "The environment is read as the Hub's own programs do: HF_HUB_CACHE, HF_HOME, HF_ENDPOINT, "
      "HF_TOKEN (or\n$HF_HOME/token), HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE, "
      "HF_HUB_DOWNLOAD_TIMEOUT, https_proxy, no_proxy,\nSSL_CERT_FILE.\n"
      "Examples:\n"
      "  dstrain fetch hf://Qwen/Qwen2.5-3B\n"
      "  dstrain fetch hf://datasets/meta-math/MetaMathQA --dry-run\n"
      "  dstrain fetch google/vit-base-patch16-224@main --to models/vit");
  app->add_option("what", options->what,
                  "hf://ORG/NAME, hf://ORG/NAME@REVISION, hf://ORG/NAME/FILE, "
                  "hf://datasets/ORG/NAME, or ORG/NAME.")
      ->required();
  app->add_option("--to", options->to, "Folder for the files. Default: the Hub's cache.");
  app->add_flag("--offline", options->offline,
                "Ask nobody; say where the cache has it, or exit with 69.");
  app->add_flag("--dry-run", options->dry_run,
                "Print the files, their sizes and the free space; fetch nothing.");
  return {app, [options] { return fetch(*options); }};
}

}  // namespace dstrain
