#include "engine/checkpoint/import_match.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>

#include "engine/base/error.h"
#include "engine/weights/misfits.h"
#include "engine/weights/weight_folder.h"

namespace dstrain {
namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// Names that wrappers of modules put before all names.
constexpr std::array<std::string_view, 6> kPrefixes = {
    "", "module.", "_orig_mod.", "module._orig_mod.", "_fsdp_wrapped_module.", "model."};

const ForeignTensor* find(const ForeignCheckpoint::Tensors& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  return found == tensors.end() ? nullptr : &found->second;
}

/// The files' names of a tensor, tied names followed to the one that has values.
class Names {
 public:
  Names(const ForeignCheckpoint& foreign, const std::vector<WantedTensor>& wanted)
      : foreign_(foreign) {
    std::size_t max = 0;
    for (const std::string_view prefix : kPrefixes) {
      const auto count =
          static_cast<std::size_t>(std::ranges::count_if(wanted, [&](const WantedTensor& tensor) {
            return find_with(tensor, prefix).has_value();
          }));
      if (count > max) prefix_ = prefix;
      max = std::max(max, count);
    }
  }
  [[nodiscard]] std::optional<std::string> find(const WantedTensor& tensor) const {
    return find_with(tensor, prefix_);
  }

 private:
  [[nodiscard]] std::optional<std::string> find_with(const WantedTensor& tensor,
                                                     std::string_view prefix) const {
    for (const std::string& name : tensor.file_names) {
      const std::string full = std::string(prefix) + name;
      if (foreign_.weights.contains(full)) return full;
      const auto shared = foreign_.shared.find(full);
      if (shared != foreign_.shared.end() && foreign_.weights.contains(shared->second))
        return shared->second;
    }
    return std::nullopt;
  }

  const ForeignCheckpoint& foreign_;
  std::string_view prefix_;
};

bool has_moments(const ForeignCheckpoint& foreign, const std::string& name) {
  return std::ranges::any_of(foreign.moments,
                             [&](const auto& moment) { return moment.second.contains(name); });
}

/// A key of which recipe and files differ.
class Differences {
 public:
  Differences(const std::set<std::string>& accept, std::vector<std::string>& notes)
      : accept_(accept), notes_(notes) {}

  void add(const std::string& key, const std::string& text) {
    if (!seen_.insert(key).second) return;  // the first of many tensors
    if (accept_.contains(key)) {
      notes_.push_back(fmt::format("{}: {} (accepted)", key, text));
    } else {
      errors_.push_back(fmt::format("{}: {}", key, text));
    }
  }
  void throw_if_any(const std::filesystem::path& path) const {
    if (errors_.empty()) return;
    throw Error(ErrorKind::usage,
                fmt::format("{} was trained with other settings than the recipe's:\n{}",
                            path.string(), fmt::join(errors_, "\n")),
                "change the recipe, or take the difference with --accept KEY");
  }

 private:
  const std::set<std::string>& accept_;
  std::vector<std::string>& notes_;
  std::set<std::string> seen_;
  std::vector<std::string> errors_;
};

bool differ(double a, double b) {
  return std::abs(a - b) > 1e-6 * std::max(std::abs(a), std::abs(b));
}

}  // namespace

Matches match_tensors(const ForeignCheckpoint& foreign, const std::vector<WantedTensor>& wanted,
                      bool weights_only, std::vector<std::string>& notes) {
  using enum Misfits::Way;
  Misfits misfits;
  std::vector<std::string> frozen_there, frozen_here;
  std::set<std::string> used;
  const Names names(foreign, wanted);
  const std::string where = foreign.path.string();
  Matches matches;
  for (const WantedTensor& tensor : wanted) {
    const auto name = names.find(tensor);
    if (!name) {
      misfits.add(missing, fmt::format("{}: no tensor '{}' {}", where, tensor.name,
                                       shape_text(tensor.shape)));
      continue;
    }
    used.insert(*name);
    Match match{.wanted = &tensor, .found = *name, .weight = find(foreign.weights, *name)};
    const std::vector<std::int64_t> in_files =
        tensor.turned ? tensor.turned->shape_in_file() : tensor.shape;
    if (match.weight->shape() != in_files) {
      misfits.add(shape, fmt::format("{}: tensor '{}' is {}, the model needs {}", where, *name,
                                     shape_text(match.weight->shape()), shape_text(in_files)));
      continue;
    }
    if (const ForeignTensor* copy = find(foreign.copies, *name)) match.copies.push_back(copy);
    for (const auto& [other, source] : foreign.shared) {
      const ForeignTensor* copy = source == *name ? find(foreign.copies, other) : nullptr;
      if (copy == nullptr) copy = source == *name ? find(foreign.weights, other) : nullptr;
      if (copy != nullptr && copy->shape() == match.weight->shape()) match.copies.push_back(copy);
      if (source == *name) used.insert(other);
    }
    for (const std::string& tie : tensor.ties) {
      const ForeignTensor* copy = find(foreign.weights, tie);
      if (copy != nullptr && copy->shape() == tensor.shape) match.copies.push_back(copy);
      used.insert(tie);
    }
    if (!weights_only) {
      const bool trained = has_moments(foreign, *name);
      if (tensor.trained && !trained && foreign.has_moments) frozen_there.push_back(*name);
      if (!tensor.trained && trained) frozen_here.push_back(*name);
      for (const std::string& moment : tensor.moments) {
        const auto group = foreign.moments.find(moment);
        const ForeignTensor* found =
            group == foreign.moments.end() ? nullptr : find(group->second, *name);
        if (found == nullptr && trained)
          misfits.add(dtype,
                      fmt::format("{}: the optimizer has no '{}' of '{}', which the recipe's needs",
                                  where, moment, *name));
        if (found != nullptr && found->numel() != match.weight->numel())
          misfits.add(shape, fmt::format("{}: '{}' of '{}' has {} elements, the tensor {}", where,
                                         moment, *name, found->numel(), match.weight->numel()));
        match.moments.push_back(found);
      }
    }
    matches.push_back(std::move(match));
  }
  misfits.throw_if_any(
      "the checkpoint is of another model or optimizer than the recipe's; look with "
      "`dstrain checkpoint inspect`");
  if (!frozen_there.empty()) {
    throw Error(
        ErrorKind::usage,
        fmt::format(
            "{}: no moments of {}, so it was frozen or had no gradient; the recipe trains it",
            where, listed(frozen_there, ", ")),
        "list it in model.frozen, or take the weights alone with --weights-only");
  }
  if (!frozen_here.empty()) {
    throw Error(
        ErrorKind::usage,
        fmt::format("{}: {} was trained; the recipe freezes it", where, listed(frozen_here, ", ")),
        "take it out of model.frozen");
  }
  if (!foreign.has_moments && !weights_only) {
    throw Error(ErrorKind::usage, fmt::format("{} has weights only", where),
                "--weights-only begins at step 0 with them; or copy the optimizer's files beside");
  }
  std::vector<std::string> unused;
  for (const auto& [name, tensor] : foreign.weights) {
    if (!used.contains(name)) unused.push_back(name);
  }
  if (!unused.empty())
    notes.push_back(fmt::format("not used by this model: {}", listed(unused, ", ")));
  return matches;
}

void check_rules(const ForeignCheckpoint& foreign, const Matches& matches, const ImportRules& rules,
                 const std::set<std::string>& accept, std::vector<std::string>& notes) {
  Differences differences(accept, notes);
  const std::int64_t expected = foreign.step - foreign.skipped_steps + foreign.extra_updates;
  if (foreign.optimizer_steps != expected) {
    differences.add(
        "step",
        fmt::format("the optimizer has made {} updates, {} steps of which {} were "
                    "skipped make {}: its files may be of another step",
                    foreign.optimizer_steps, foreign.step, foreign.skipped_steps, expected));
  }
  if (foreign.batch > 0 && foreign.batch != rules.batch) {
    differences.add("batch.global", fmt::format("a step had {} samples, the recipe has {}",
                                                foreign.batch, rules.batch));
  }
  for (const Match& match : matches) {
    const auto found = foreign.rules.find(match.found);
    if (!match.wanted->trained || found == foreign.rules.end()) continue;
    const ForeignRule& rule = found->second;
    const double decay = match.wanted->decay ? rules.weight_decay : 0;
    if (rule.weight_decay && differ(*rule.weight_decay, decay)) {
      differences.add("optimizer.weight_decay",
                      fmt::format("'{}' had {}, the recipe gives it {}", match.found,
                                  *rule.weight_decay, decay));
    }
    const bool adam = match.wanted->moments.size() == 2 && !rules.betas.empty();
    if (adam && rule.eps && differ(*rule.eps, rules.eps))
      differences.add("optimizer.eps",
                      fmt::format("it was {}, the recipe has {}", *rule.eps, rules.eps));
    if (adam && !rule.betas.empty() &&
        !std::ranges::equal(rule.betas, rules.betas,
                            [](double a, double b) { return !differ(a, b); })) {
      differences.add("optimizer.betas",
                      fmt::format("they were [{}], the recipe has [{}]",
                                  fmt::join(rule.betas, ", "), fmt::join(rules.betas, ", ")));
    }
    if (match.wanted->moments == std::vector<std::string>{"momentum_buffer"} && rule.momentum &&
        differ(*rule.momentum, rules.momentum)) {
      differences.add("optimizer.momentum",
                      fmt::format("it was {}, the recipe has {}", *rule.momentum, rules.momentum));
    }
  }
  differences.throw_if_any(foreign.path);
}

}  // namespace dstrain
