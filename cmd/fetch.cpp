#include "engine/hub/fetch.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cmd/command.h"
#include "cmd/fetch_progress.h"
#include "cmd/overrides.h"
#include "cmd/recipe_words.h"
#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/output.h"
#include "engine/base/printable.h"
#include "engine/base/units.h"
#include "engine/base/user_folders.h"
#include "engine/base/words.h"
#include "engine/hub/archives.h"
#include "engine/hub/known_folders.h"
#include "engine/recipe/hub_words.h"
#include "engine/recipe/load.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

struct FetchOptions {
  std::vector<std::string> what;
  std::vector<std::string> overrides;
  fs::path to;
  bool offline = false;
  bool dry_run = false;
  bool list = false;
};

/// A name of the Hub and what of it is wanted.
struct Wanted {
  hub::HubName name;
  hub::Use use;
};
Wanted with_use(hub::HubName name) {
  const hub::Use use = name.dataset ? hub::Use::data : hub::Use::weights;
  return {std::move(name), use};
}

void print_plan(const hub::FetchPlan& plan, const hub::HubPlaces& places) {
  print_text("{}\n", plan.name.text());
  for (const hub::HubFile& file : plan.files)
    print_text("  {:>12}  {}\n", format_bytes(file.size), file.path);
  const fs::path folder = plan.to.empty() ? places.cache : plan.to;
  const std::int64_t room = free_disk_bytes(folder);
  print_text("  {} file{}, {}, of which {} are to come; {} has {} free\n", plan.files.size(),
             plural(plan.files.size()), format_bytes(plan.bytes), format_bytes(plan.missing),
             folder.string(), room < 0 ? "an unknown size" : format_bytes(room));
}

/// Where recipes look for data.
fs::path data_folder() {
  const char* given = std::getenv("DSTRAIN_DATA");
  return given == nullptr || *given == '\0' ? "data" : given;
}

void list_known() {
  for (const hub::Archive& one : hub::archives())
    print_text("{:<10} {:>11}  {}, to {}\n           {}\n", one.name, format_bytes(one.size),
               one.about, (data_folder() / one.folder).string(), one.address);
  for (const hub::KnownFolder& one : hub::known_folders())
    print_text(
        "{:<22} {}\n",
        one.data.empty() ? fmt::format("models/{}", one.name) : (data_folder() / one.name).string(),
        hub::HubName{!one.data.empty(), std::string(one.id), {}, {}}.text());
  print_text(
      "and any model or data set of text or images on the Hub: hf://ORG/NAME, "
      "hf://datasets/ORG/NAME\n");
}

void fetch_archive(const hub::Archive& archive, const FetchOptions& options) {
  const fs::path data = options.to.empty() ? data_folder() : options.to;
  const fs::path folder = data / archive.folder;
  const bool there = path_exists(folder, ErrorKind::usage);
  if (options.dry_run) {
    const std::int64_t room = free_disk_bytes(fs::absolute(data));
    print_text("{}\n  {}, {}, to {}{}; {} free\n", archive.name, archive.address,
               format_bytes(archive.size), folder.string(), there ? ", which is there" : "",
               room < 0 ? "an unknown size is" : format_bytes(room));
    return;
  }
  if (!there && options.offline)
    throw Error(ErrorKind::hosts,
                fmt::format("{} is not there, and this is offline", folder.string()),
                "fetch it where there is a network");
  if (!there) fetch_archive_with_progress(archive, data);
  print_text("{}\n", folder.string());
}

/// The names in a recipe. The archive that its data.path lacks is fetched at once.
std::vector<Wanted> wanted_of_recipe(const std::string& recipe, const FetchOptions& options) {
  NamedThings named = named_things(recipe, options.overrides, /*with_data=*/true);
  if (named.words.empty() && !named.data) {
    (void)load_recipe(recipe, options.overrides);  // says what is wrong with it
    print_error("{} names nothing that is to come\n", recipe);
  }
  if (named.data) {
    FetchOptions there = options;
    if (there.to.empty()) there.to = named.data->parent.empty() ? "." : named.data->parent;
    fetch_archive(*named.data->archive, there);
  }
  std::vector<Wanted> all;
  for (HubWord& one : named.words) all.push_back({std::move(one.name), one.use});
  return all;
}

/// What a word of the command line is: a name, or a recipe with names in it.
std::vector<Wanted> wanted_of(const std::string& word, const FetchOptions& options) {
  if (auto name = hub::parse_hub_name(word)) return {with_use(*std::move(name))};
  if (const std::string recipe = recipe_called(word); !recipe.empty())
    return wanted_of_recipe(recipe, options);
  if (hub::is_bare_name(word)) return {with_use(*hub::parse_hub_name("hf://" + word))};
  throw Error(ErrorKind::usage,
              fmt::format("'{}' is no name of the Hub and no recipe", shown(word, 200)),
              "write hf://ORG/NAME, hf://ORG/NAME@REVISION, hf://ORG/NAME/FILE, "
              "hf://datasets/ORG/NAME, or a recipe that `dstrain recipe list` lists");
}

int fetch(const FetchOptions& given) {
  if (given.list) {
    list_known();
    return 0;
  }
  if (given.what.empty())
    throw Error(ErrorKind::usage, "fetch what?", "name a model, a data set or a recipe, or --list");
  hub::HubPlaces places = hub::hub_places();
  places.offline = places.offline || given.offline;
  FetchOptions options = given;
  options.offline = places.offline;
  std::vector<Wanted> all;
  for (const std::string& word : options.what) {
    if (const hub::Archive* archive = hub::find_archive(word)) {
      fetch_archive(*archive, options);
      continue;
    }
    for (Wanted& one : wanted_of(word, options)) all.push_back(std::move(one));
  }
  if (!options.to.empty() && all.size() > 1)
    throw Error(ErrorKind::usage, fmt::format("--to beside {} names", all.size()),
                "a folder takes the files of one name");
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
      "  dstrain fetch recipes/own/jsonl.yaml --set model.weights=Qwen/Qwen2.5-0.5B\n"
      "  dstrain fetch google/vit-base-patch16-224@main --to models/vit");
  app->add_option("what", options->what,
                  "hf://ORG/NAME, hf://ORG/NAME@REVISION, hf://ORG/NAME/FILE, "
                  "hf://datasets/ORG/NAME, ORG/NAME, cifar100, food101, or a recipe: "
                  "what it names.");
  add_overrides(*app, options->overrides);
  app->add_option("--to", options->to,
                  "Folder for the files. Default: the Hub's cache; of cifar100 and food101 "
                  "$DSTRAIN_DATA, else data, where recipes look.");
  app->add_flag("--offline", options->offline,
                "Ask nobody; say where the cache has it, or exit with 69.");
  app->add_flag("--list", options->list, "List what has a name of its own; fetch nothing.");
  app->add_flag("--dry-run", options->dry_run,
                "Print the files, their sizes and the free space; fetch nothing.");
  return {app, [options] { return fetch(*options); }};
}

}  // namespace dstrain
