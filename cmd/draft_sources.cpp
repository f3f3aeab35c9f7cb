#include "cmd/draft_sources.h"

#include <cstdlib>
#include <filesystem>
#include <optional>

#include "cmd/fetch_progress.h"
#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/output.h"
#include "engine/hub/cache.h"
#include "engine/hub/fetch.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// Where it is in the cache, after it was brought there. Error as of the Hub.
fs::path brought(const hub::HubName& name, hub::Use use) {
  if (!hub::is_cached_for(name, use)) {
    const hub::HubPlaces places = hub::hub_places();
    fetch_with_progress(places, hub::plan_fetch(places, name, use));
  }
  const auto path = hub::cached_path(name);
  if (!path) throw Error(ErrorKind::hosts, name.text() + " is not in the cache of the Hub");
  return *path;
}

/// The same where it can be done without: empty, and a note, where the Hub gives nothing.
fs::path brought_if_there(const hub::HubName& name, hub::Use use, const char* what) {
  try {
    return brought(name, use);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::data) throw;
    print_error("note: no {} of {}: {}{}{}\n", what, name.text(), error.what(),
                error.hint().empty() ? "" : "; ", error.hint());
    return {};
  }
}

/// The folder beside which recipes of the tree look for data.
fs::path data_folder() {
  const char* given = std::getenv("DSTRAIN_DATA");
  return given == nullptr || *given == '\0' ? "data" : given;
}

}  // namespace

draft::ModelFacts found_model(const std::string& word) {
  const draft::ModelWord model = draft::read_model_word(word);
  if (!model.hub) return draft::look_at_model(model, model.folder);
  const bool published = model.published != nullptr;
  const fs::path files = published ? brought_if_there(*model.hub, hub::Use::config, "config.json")
                                   : brought(*model.hub, hub::Use::config);
  draft::ModelFacts facts = draft::look_at_model(model, files);
  if (facts.takes_text() && !files.empty())
    facts.files = brought_if_there(*model.hub, hub::Use::tokenizer, "tokenizer");
  return facts;
}

std::string found_tokenizer(const std::string& word) {
  if (path_exists(word, ErrorKind::usage)) return word;
  const auto name = hub::parse_hub_name(hub::is_bare_name(word) ? "hf://" + word : word);
  return name ? brought(*name, hub::Use::tokenizer).string() : word;
}

draft::DataFacts found_data(const std::string& word, const draft::LookOptions& options) {
  const draft::DataWord data = draft::read_data_word(word);
  if (data.digits) return draft::facts_of_digits();
  if (data.archive != nullptr) {
    const fs::path folder = data_folder() / data.archive->folder;
    return path_exists(folder) ? draft::look_at_data(folder, options)
                               : draft::facts_of_archive(*data.archive, folder);
  }
  if (!data.hub) return draft::look_at_data(data.path, options);
  const fs::path here = brought(*data.hub, hub::Use::data);
  draft::DataFacts facts = draft::look_at_data(here, options);
  hub::HubName name = *data.hub;
  if (fs::path(facts.path) != here)
    name.file = fs::path(facts.path).lexically_relative(here).string();
  facts.path = name.text();
  return facts;
}

}  // namespace dstrain
