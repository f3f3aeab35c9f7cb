#include "engine/comm/profiled.h"

#include <array>
#include <memory>
#include <string_view>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>
#include <utility>

namespace dstrain {
namespace {

/// As c10d calls it.
std::string torch_name(std::string_view operation) {
  constexpr std::array<std::pair<std::string_view, const char*>, 4> kNames = {{
      {"all_reduce", "allreduce"},
      {"all_gather", "_allgather_base"},
      {"reduce_scatter", "_reduce_scatter_base"},
      {"receive", "recv"},
  }};
  for (const auto& [own, theirs] : kNames) {
    if (own == operation) return theirs;
  }
  return std::string(operation);
}

}  // namespace

ProfiledGroup ProfiledGroup::of(const std::string& name, const std::vector<int>& ranks, int rank) {
  if (ranks.empty()) return {.name = name};
  ProfiledGroup group{.name = name, .size = static_cast<int>(ranks.size()), .first = ranks.front()};
  if (ranks.size() > 1) group.stride = ranks[1] - ranks[0];
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == rank) group.rank = static_cast<int>(i);
    if (ranks[i] != group.first + static_cast<int>(i) * group.stride) group.stride = 0;
  }
  return group;
}

ProfiledCollective::ProfiledCollective(const ProfiledGroup& group, const char* operation,
                                       const at::Tensor& input, const at::Tensor& output,
                                       std::int64_t sequence) {
  if (!at::hasCallbacks()) return;
  const auto pair = std::make_tuple(group.name, std::string("dstrain"));
  info_.emplace(
      c10::DebugInfoKind::PARAM_COMMS_INFO,
      std::make_shared<torch::ParamCommsDebugInfo>(
          pair, group.rank, torch_name(operation), input.defined() ? input.numel() : 0,
          output.defined() ? output.numel() : 0,
          output.defined() ? output.scalar_type() : at::kByte, std::vector<std::int64_t>{},
          std::vector<std::int64_t>{}, group.first, group.stride, group.size));
  scope_.emplace(at::RecordScope::FUNCTION);
  if (!scope_->isActive()) return;
  const std::vector<c10::IValue> inputs = {c10::IValue(sequence), c10::IValue(group.name),
                                           c10::IValue(group.rank),
                                           c10::IValue(torch_name(operation))};
  scope_->before(at::kParamCommsCallName, &inputs);
}

}  // namespace dstrain
