#include "cmd/hub_names.h"

#include <optional>

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

/// ORG/NAME may be a path that other hosts have: where the Hub has no such name, whoever looks for
/// files says what is missing.
std::optional<hub::FetchPlan> plan_bare(hub::HubPlaces places, const HubWord& word) {
  constexpr int kTries = 2;
  places.tries = kTries;
  try {
    return hub::plan_fetch(places, word.name, word.use);
  } catch (const Error& error) {
    print_error("note: {}: {} is no path here, and as a name of the Hub: {}\n", word.key,
                word.name.id, error.what());
    return std::nullopt;
  }
}

void bring_whole(const hub::HubPlaces& places, const HubWord& word) {
  const auto plan =
      word.bare ? plan_bare(places, word) : hub::plan_fetch(places, word.name, word.use);
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

}  // namespace

void bring_named(const std::string& recipe, const std::vector<std::string>& overrides,
                 Bring bring) {
  const NamedThings named = named_things(recipe, overrides, bring == Bring::all_and_data);
  if (named.words.empty() && !named.data) return;
  if (bring == Bring::nothing) {
    for (const HubWord& word : named.words)
      if (!hub::cached_path(word.name))
        print_error(
            "note: {}: {} is to be fetched: `dstrain fetch`, or launch before ranks start\n",
            word.key, word.name.text());
    return;
  }
  const hub::HubPlaces places = hub::hub_places();
  for (const HubWord& word : named.words) {
    if (bring != Bring::config)
      bring_whole(places, word);
    else if (word.use == hub::Use::weights && !hub::cached_path(word.name))
      bring_config(places, word);
  }
  if (named.data && !places.offline) bring_data(*named.data);
}

}  // namespace dstrain
