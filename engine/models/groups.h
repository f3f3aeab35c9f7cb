#pragma once

#include <string>
#include <vector>

#include "engine/models/model.h"

namespace dstrain {

using ParameterGroups = std::vector<std::vector<Parameter*>>;

/// The weights of a model as they are gathered, reduced and updated: per block, or run of small
/// neighbouring blocks (Model::bucket), what it trains and what is frozen of it, and of these what
/// ranks hold whole and what is cut between them. A weight that two blocks share is with the first.
/// Inside a group matrices come first, hidden ones before others, then vectors, and those with
/// weight decay before those without, so that each kind is one range of the flat buffer.
struct GroupedParameters {
  ParameterGroups groups;
  std::vector<std::string> names;          ///< per group
  std::vector<std::vector<int>> of_block;  ///< groups that each block reads, ascending
};
[[nodiscard]] GroupedParameters group_parameters(const Model& model);

/// Tensors whose names match one of `patterns` (* any text, ? any character) are not trained.
/// Error{usage} names `key` and a pattern that matches nothing, or only some of the tensors that
/// are multiplied as one.
void freeze(const Model& model, const std::vector<std::string>& patterns, const std::string& key);
/// The opposite; a pattern may also match a module's name and then means all its tensors.
void train(const Model& model, const std::vector<std::string>& patterns, const std::string& key);
/// As freeze, for tensors that weight decay leaves alone.
void exempt_from_decay(const Model& model, const std::vector<std::string>& patterns,
                       const std::string& key);

[[nodiscard]] bool matches(const std::string& pattern, const std::string& name);
/// The same for the name of a module: a pattern without a dot is held against its last part.
[[nodiscard]] bool matches_module(const std::string& pattern, const std::string& name);

}  // namespace dstrain
