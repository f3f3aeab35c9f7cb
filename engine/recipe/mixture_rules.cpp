#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "engine/recipe/rule.h"
#include "engine/recipe/text.h"

namespace dstrain {
namespace {

void mixtures_have_members(const Recipe& r, RuleContext& context) {
  const bool mixture = r.data.name == DatasetName::mixture;
  if (mixture && r.data.mixture.empty())
    context.error("data.mixture", "lists no data set",
                  "write for example mixture: [{ name: chat, path: a.jsonl }, { name: jsonl, path: "
                  "b.jsonl, response: \"{text}\" }]");
  if (!mixture && !r.data.mixture.empty())
    context.error(
        "data.name",
        fmt::format("{}, but data.mixture lists data sets", dataset_row(r.data.name).spelling),
        "leave data.name out, or data.mixture");
}

void members_are_files(const Recipe& r, RuleContext& context) {
  for (std::size_t i = 0; i < r.data.mixture.size(); ++i) {
    const DatasetRow& row = dataset_row(r.data.mixture[i].name);
    if (row.name != DatasetName::mixture && !is_generated(row)) continue;
    context.error(
        member_path(i, "data.name"), fmt::format("{} is no member of a mixture", row.spelling),
        row.name == DatasetName::mixture ? "list its members here" : "name data sets of files");
  }
}

bool same_samples(const MemberConfig& one, const MemberConfig& other) {
  const auto place = [](const MemberConfig& member) {
    const auto path = std::filesystem::path(member.path).lexically_normal();
    return path.has_filename() ? path : path.parent_path();
  };
  return one.name == other.name && place(one) == place(other) && one.label == other.label &&
         one.prompt == other.prompt && one.response == other.response &&
         one.template_file == other.template_file && one.template_args == other.template_args;
}

void members_differ(const Recipe& r, RuleContext& context) {
  const auto& members = r.data.mixture;
  for (std::size_t i = 0; i < members.size(); ++i) {
    for (std::size_t first = 0; first < i; ++first) {
      if (!same_samples(members[first], members[i])) continue;
      context.error(fmt::format("data.mixture.{}", i),
                    fmt::format("the same data set as data.mixture.{}: {} {}", first,
                                dataset_row(members[i].name).spelling, shown(members[i].path)),
                    "list it once, with the sum of the weights");
      break;
    }
  }
}

void weights_are_shares(const Recipe& r, RuleContext& context) {
  const auto& members = r.data.mixture;
  const auto by_size = [](const MemberConfig& member) { return member.weight == -1; };
  const bool some = !std::ranges::all_of(members, by_size);
  for (std::size_t i = 0; i < members.size(); ++i) {
    const double weight = members[i].weight;
    const std::string path = fmt::format("data.mixture.{}.weight", i);
    if (weight <= 0 && !by_size(members[i])) {
      context.error(path, fmt::format("{}: none of its samples would be drawn", weight),
                    "leave the member out, or give it a weight above 0");
    } else if (some && by_size(members[i])) {
      context.error(path, "missing, and other members have weights",
                    "give every member a weight, or none, which goes by size");
    }
  }
}

void epochs_end(const Recipe& r, RuleContext& context) {
  const std::string& text = r.data.epoch_of;
  if (text == "sum" || text == "longest" || text == "shortest") return;
  const auto number = read_integer(text);
  const auto members = std::ssize(r.data.mixture);
  if (number.value && *number.value >= 0 && *number.value < members) return;
  if (members == 0) return;
  context.error("data.epoch_of", fmt::format("'{}' is no member of data.mixture", shown(text)),
                fmt::format("use sum, longest, shortest, or a number from 0 to {}", members - 1));
}

void exports_have_one_template(const Recipe& r, RuleContext& context) {
  const MemberConfig* first = nullptr;
  for (std::size_t i = 0; i < r.data.mixture.size(); ++i) {
    const MemberConfig& member = r.data.mixture[i];
    if (member.name != DatasetName::chat) continue;
    if (first != nullptr && first->template_file != member.template_file)
      context.warning(member_path(i, "data.template"),
                      "another chat template than that of the first member of chats, which is what "
                      "exports write",
                      "use one template for all members");
    if (first == nullptr) first = &member;
  }
}

}  // namespace

std::span<const Rule> mixture_rules() {
  static const std::vector<Rule> all = {
      {mixtures_have_members, {"data.name", "data.mixture"}},
      {members_are_files, {"data.mixture"}},
      {members_differ, {"data.mixture"}},
      {weights_are_shares, {"data.mixture"}},
      {exports_have_one_template, {"data.mixture"}},
      {epochs_end, {"data.mixture", "data.epoch_of"}},
  };
  return all;
}

}  // namespace dstrain
