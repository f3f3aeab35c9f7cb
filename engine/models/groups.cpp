#include "engine/models/groups.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "engine/base/error.h"
#include "engine/program/cost.h"
#include "engine/recipe/text.h"

namespace dstrain {
namespace {

constexpr const char* kHead = "lm_head";
constexpr const char* kHeadTable = "lm_head.weight";

using Matcher = bool (*)(const std::string& pattern, const std::string& tensor);

/// Sets `flag` to `value` where a pattern matches all parts of a parameter.
void mark(const Model& model, const std::vector<std::string>& patterns, const std::string& key,
          Matcher matcher, bool Parameter::*flag, bool value) {
  const std::vector<Parameter*> parameters = all_parameters(model);
  for (const std::string& pattern : patterns) {
    bool found = false;
    for (Parameter* parameter : parameters) {
      const auto matching = std::ranges::count_if(
          parameter->parts, [&](const Piece& part) { return matcher(pattern, part.name); });
      if (matching == 0) continue;
      found = true;
      if (std::cmp_equal(matching, parameter->parts.size())) {
        parameter->*flag = value;
        continue;
      }
      std::string names;
      for (const Piece& part : parameter->parts) names += (names.empty() ? "" : ", ") + part.name;
      throw Error(ErrorKind::usage,
                  fmt::format("{}: '{}' matches only some of {}, which are one matrix here", key,
                              shown(pattern), names),
                  "write a pattern that matches all of them or none");
    }
    // The name of a head that has a table of its own.
    if (!found && model.blocks.back()->name() == kHead && matcher(pattern, kHeadTable)) {
      const std::string& table = parameters.front()->parts.front().name;
      throw Error(ErrorKind::usage,
                  fmt::format("{}: '{}' is the head, which reads the embedding's table '{}' in this "
                              "model",
                              key, shown(pattern), table),
                  fmt::format("name the table: '{}'", table));
    }
    if (!found) {
      throw Error(ErrorKind::usage,
                  fmt::format("{}: no tensor's name matches '{}'", key, shown(pattern)),
                  fmt::format("names look like {} and {}", parameters.front()->parts.front().name,
                              parameters.back()->parts.front().name));
    }
  }
}

}  // namespace

bool matches(const std::string& pattern, const std::string& name) {
  std::size_t p = 0, n = 0, star = std::string::npos, resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (star != std::string::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string::npos;
}

bool matches_module(const std::string& pattern, const std::string& name) {
  // rfind's npos + 1 is 0: all of the name.
  return matches(pattern,
                 pattern.find('.') != std::string::npos ? name : name.substr(name.rfind('.') + 1));
}

void freeze(const Model& model, const std::vector<std::string>& patterns, const std::string& key) {
  mark(model, patterns, key, matches, &Parameter::trainable, false);
}

void train(const Model& model, const std::vector<std::string>& patterns, const std::string& key) {
  const auto matcher = [](const std::string& pattern, const std::string& tensor) {
    return matches(pattern, tensor) || matches_module(pattern, tensor.substr(0, tensor.rfind('.')));
  };
  mark(model, patterns, key, matcher, &Parameter::trainable, true);
}

void exempt_from_decay(const Model& model, const std::vector<std::string>& patterns,
                       const std::string& key) {
  mark(model, patterns, key, matches, &Parameter::decay, false);
}

void exempt_vectors_from_decay(const Model& model) {
  for (Parameter* parameter : all_parameters(model)) {
    if (parameter->shape.size() < 2) parameter->decay = false;
  }
}

namespace {

/// What the weights of a group have in common.
struct GroupKey {
  bool trainable = true;
  Cut cut = Cut::none;
  auto operator<=>(const GroupKey&) const = default;
};

/// What tells the group from others of its block: whole weights beside cut ones, experts beside
/// others, frozen ones beside trained.
std::string suffix(const GroupKey& key, const std::set<Cut>& cuts, bool both) {
  std::vector<std::string> words;
  if (both && !key.trainable) words.emplace_back("frozen");
  if (key.cut == Cut::none && cuts.contains(Cut::tensor)) words.emplace_back("whole");
  if (key.cut == Cut::expert && cuts.size() > 1) words.emplace_back("experts");
  return words.empty() ? "" : fmt::format(" ({})", fmt::join(words, ", "));
}

/// Runs of neighbouring blocks whose fp32 gradients take at most `bucket` bytes together.
std::vector<std::vector<Block*>> buckets_of(const Model& model) {
  std::vector<std::vector<Block*>> buckets;
  Bytes bytes = 0;
  for (const auto& block : model.blocks) {
    Bytes own = 0;
    for (const Parameter* parameter : block->parameters()) own += parameter->numel() * kFloatBytes;
    if (buckets.empty() || bytes + own > model.bucket) {
      buckets.emplace_back();
      bytes = 0;
    }
    buckets.back().push_back(block.get());
    bytes += own;
  }
  return buckets;
}

/// "layer1.0", "layer1.0 to layer1.2".
std::string name_of(const std::vector<Block*>& bucket) {
  const std::string& first = bucket.front()->name();
  return bucket.size() == 1 ? first : fmt::format("{} to {}", first, bucket.back()->name());
}

}  // namespace

GroupedParameters group_parameters(const Model& model) {
  GroupedParameters grouped;
  std::map<const Parameter*, int> group_of;
  for (const std::vector<Block*>& bucket : buckets_of(model)) {
    std::map<GroupKey, std::vector<Parameter*>> fresh;  // frozen ones first
    std::set<Cut> cuts;
    for (Block* block : bucket) {
      for (Parameter* parameter : block->parameters()) {
        if (group_of.contains(parameter)) continue;
        fresh[{parameter->trainable, parameter->cut}].push_back(parameter);
        cuts.insert(parameter->cut);
      }
    }
    const bool both =
        !fresh.empty() && fresh.begin()->first.trainable != fresh.rbegin()->first.trainable;
    for (auto& [key, group] : fresh) {
      std::ranges::stable_sort(group, {}, [](const Parameter* p) {
        return std::tuple(p->shape.size() < 2, !p->hidden_matrix, !p->decay);
      });
      for (const Parameter* parameter : group)
        group_of[parameter] = static_cast<int>(grouped.groups.size());
      grouped.names.push_back(name_of(bucket) + suffix(key, cuts, both));
      grouped.groups.push_back(std::move(group));
    }
    for (Block* block : bucket) {
      std::vector<int> read;
      for (const Parameter* parameter : block->parameters()) read.push_back(group_of.at(parameter));
      std::ranges::sort(read);
      read.erase(std::unique(read.begin(), read.end()), read.end());
      grouped.of_block.push_back(std::move(read));
    }
  }
  return grouped;
}

}  // namespace dstrain
