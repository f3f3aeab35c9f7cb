#include "cmd/hub_names.h"

#include <atomic>
#include <optional>
#include <set>
#include <string>

#include "cmd/fetch_progress.h"
#include "engine/base/error.h"
#include "engine/base/output.h"
#include "engine/hub/fetch.h"
#include "engine/recipe/hub_words.h"

namespace dstrain {
namespace {

void bring_config(hub::HubPlaces places, const HubWord& word) {
  places.tries = 1;
  try {
    const hub::FetchPlan plan = hub::plan_fetch(places, word.name, hub::Use::config);
    fetch_with_progress(places, plan);
  } catch (const Error& error) {
    print_error("note: {}: no config.json of {}: {}\n", word.key, word.name.text(), error.what());
  }
}

/// ORG/NAME may be a path that other hosts have, and so may a known folder: where the Hub does not
/// give them, whoever looks for files says what is missing.
std::optional<hub::FetchPlan> plan_instead(hub::HubPlaces places, const HubWord& word) {
  constexpr int kTries = 2;
  places.tries = kTries;
  try {
    return hub::plan_fetch(places, word.name, word.use);
  } catch (const Error& error) {
    print_error("note: {}: {} is no path here, and as a name of the Hub: {}{}{}\n", word.key,
                word.bare ? word.name.id : word.folder, error.what(),
                error.hint().empty() ? "" : "; ", error.hint());
    return std::nullopt;
  }
}

void bring_whole(const hub::HubPlaces& places, const HubWord& word) {
  if (!word.folder.empty())
    print_error("note: {}: {} is not there, {} takes its place\n", word.key, word.folder,
                word.name.text());
  const bool path = word.bare || !word.folder.empty();
  const auto plan =
      path ? plan_instead(places, word) : hub::plan_fetch(places, word.name, word.use);
  if (!plan) return;
  if (!plan->not_asked.empty())
    print_error("note: {}: {} as the cache has it: {}\n", word.key, word.name.text(),
                plan->not_asked);
  fetch_with_progress(places, *plan);
}

void bring_data(const LackingData& lacking) {
  print_error("note: data.path: {} is not there and is fetched\n",
              (lacking.parent / lacking.archive->folder).string());
  fetch_archive_with_progress(*lacking.archive, lacking.parent);
}

/// Whether nobody is to be asked for it.
bool is_left(const hub::HubPlaces& places, const HubWord& word, Bring bring) {
  if (word.folder.empty()) return false;
  return bring != Bring::all_and_data || places.offline;
}

void bring_in_silence(const hub::HubPlaces& places, const HubWord& word) try {
  std::atomic<std::int64_t> moved = 0;
  hub::carry_out(places, hub::plan_fetch(places, word.name, word.use), moved);
} catch (const Error&) {
  // May be a path that is meant: whoever reads it says what is missing.
  if (!word.bare && word.folder.empty()) throw;
}

}  // namespace

void bring_lacking(const std::string& recipe, const std::vector<std::string>& overrides,
                   bool speaks) {
  std::vector<HubWord> words = named_things(recipe, overrides, /*with_data=*/false).words;
  std::erase_if(words,
                [](const HubWord& word) { return hub::is_cached_for(word.name, word.use); });
  if (words.empty()) return;
  const hub::HubPlaces places = hub::hub_places();
  for (const HubWord& word : words) {
    if (!word.folder.empty() && places.offline) continue;
    if (hub::is_cached_for(word.name, word.use)) continue;  // with another word
    if (speaks)
      bring_whole(places, word);
    else
      bring_in_silence(places, word);
  }
}

void bring_named(const std::string& recipe, const std::vector<std::string>& overrides,
                 Bring bring) {
  const NamedThings named = named_things(recipe, overrides, bring == Bring::all_and_data);
  if (named.words.empty() && !named.data) return;
  if (bring == Bring::nothing) {
    for (const HubWord& word : named.words)
      if (word.folder.empty() && !hub::cached_path(word.name))
        print_error(
            "note: {}: {} is to be fetched: `dstrain fetch`, or launch before ranks start\n",
            word.key, word.name.text());
    return;
  }
  const hub::HubPlaces places = hub::hub_places();
  std::set<std::string> whole;  // models, which have their tokenizers with them
  for (const HubWord& word : named.words) {
    if (is_left(places, word, bring)) continue;
    if (bring != Bring::config) {
      if (word.use == hub::Use::tokenizer && whole.contains(word.name.text())) continue;
      bring_whole(places, word);
      if (word.use == hub::Use::weights) whole.insert(word.name.text());
    } else if (word.use == hub::Use::weights && !hub::cached_path(word.name)) {
      bring_config(places, word);
    }
  }
  if (named.data && !places.offline) bring_data(*named.data);
}

}  // namespace dstrain
