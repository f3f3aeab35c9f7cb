#include "engine/program/kinds.h"

#include <array>

namespace dstrain {
namespace {

constexpr std::array<const char*, kNumLanes> kLaneNames = {
    "compute",      "gather",     "reduce",   "copy_in",       "send_down", "send_up",
    "receive_down", "receive_up", "copy_out", "fetch",         "update",    "evict",
    "host_out",     "host",       "host_in",  "compute_beside"};

constexpr Lane kComputeOnly[] = {Lane::compute};
constexpr Lane kBlocks[] = {Lane::compute, Lane::compute_beside};
constexpr Lane kGather[] = {Lane::gather};
constexpr Lane kReduce[] = {Lane::reduce};
constexpr Lane kCopyIn[] = {Lane::copy_in};
constexpr Lane kCopyOut[] = {Lane::copy_out};
constexpr Lane kSend[] = {Lane::send_down, Lane::send_up};
constexpr Lane kReceive[] = {Lane::receive_down, Lane::receive_up};
// Where the device updates what rests there, where it streams states, where the CPU updates.
constexpr Lane kUpdate[] = {Lane::compute, Lane::update, Lane::host};
constexpr Lane kFetch[] = {Lane::fetch, Lane::host_in};
constexpr Lane kEvict[] = {Lane::evict, Lane::host_out};

constexpr KindRow of_group(const char* name, std::span<const Lane> lanes) {
  return {.name = name, .lanes = lanes, .subject = Subject::group};
}

constexpr KindRow of_block(const char* name, std::span<const Lane> lanes) {
  return {.name = name, .lanes = lanes, .subject = Subject::block, .micro_batch = true};
}

constexpr KindRow run(const char* name, std::span<const Lane> lanes, work::Pass pass) {
  KindRow row = of_block(name, lanes);
  row.pass = pass;
  row.phase = pass == work::Pass::forward ? Phase::forward : Phase::backward;
  row.purpose = "activations inside blocks";
  return row;
}

constexpr KindRow transfer(const char* name, std::span<const Lane> lanes) {
  KindRow row = of_block(name, lanes);
  row.purpose = "activations between stages";
  return row;
}

/// For a part of offloaded states.
constexpr KindRow move_states(const char* name, std::span<const Lane> lanes) {
  KindRow row = of_group(name, lanes);
  row.part = true;
  row.serves = Phase::update;
  return row;
}

constexpr KindRow row_of(ActionKind kind) {
  using enum ActionKind;
  switch (kind) {
    case load:
      return {.name = "load", .lanes = kCopyIn, .micro_batch = true};
    case gather: {
      KindRow row = of_group("gather", kGather);
      row.purpose = "parameters";
      return row;
    }
    case release:
      return of_group("release", kBlocks);
    case discard:
      return of_block("discard", kComputeOnly);
    case forward:
      return run("forward", kBlocks, work::Pass::forward);
    case recompute:
      return run("recompute", kBlocks, work::Pass::again);
    case clear: {
      KindRow row = of_group("clear", kBlocks);
      row.micro_batch = true;
      row.phase = Phase::backward;
      return row;
    }
    case backward:
      return run("backward", kBlocks, work::Pass::backward);
    case reduce: {
      KindRow row = of_group("reduce", kReduce);
      row.micro_batch = true;
      row.serves = Phase::backward;
      row.purpose = "gradients";
      return row;
    }
    case gather_sum: {
      KindRow row = of_group("gather_sum", kGather);
      row.serves = Phase::backward;
      row.purpose = "gradients";
      return row;
    }
    case norm:
      return {.name = "norm", .lanes = kComputeOnly, .phase = Phase::norm};
    case update: {
      KindRow row = of_group("update", kUpdate);
      row.part = true;
      row.phase = Phase::update;
      row.purpose = "momentum of matrices";
      return row;
    }
    case fetch_parameters:
      return of_group("fetch", kGather);
    case fetch_states:
      return move_states("fetch", kFetch);
    case evict_states:
      return move_states("evict", kEvict);
    case fetch_input:
      return of_block("fetch", kCopyIn);
    case evict_input:
      return of_block("evict", kCopyOut);
    case send:
      return transfer("send", kSend);
    case receive:
      return transfer("receive", kReceive);
    case backward_input:
      return run("backward_input", kComputeOnly, work::Pass::input);
    case backward_weight:
      return run("backward_weight", kComputeOnly, work::Pass::weight);
  }
  return {};
}

constexpr RoleRow resting(const char* name, Holds holds) {
  return {.name = name, .owner = Subject::group, .holds = holds, .keeps = Keeps::run};
}

constexpr RoleRow slot(const char* name, Holds holds, Elements elements) {
  return {.name = name, .owner = Subject::group, .holds = holds, .elements = elements};
}

/// For what one action of a group works in.
constexpr RoleRow scratch(const char* name, Holds holds, Elements elements) {
  RoleRow row = slot(name, holds, elements);
  row.keeps = Keeps::action;
  row.coded = elements == Elements::codes;
  return row;
}

/// For offloaded states, and parameters beside them.
constexpr RoleRow under_way(const char* name, Holds holds) {
  RoleRow row = slot(name, holds, Elements::mixed);
  row.also = Holds::parameters;
  return row;
}

constexpr RoleRow activation(const char* name, Holds holds) {
  return {.name = name, .owner = Subject::block, .holds = holds, .activation = true};
}

constexpr RoleRow row_of(BufferRole role) {
  using enum BufferRole;
  switch (role) {
    case parameters:
      return resting("parameters", Holds::parameters);
    case gradient: {
      RoleRow row = resting("gradient", Holds::gradient);
      row.also = Holds::state;
      return row;
    }
    case master:
      return resting("master weights", Holds::state);
    case moments:
      return resting("moments", Holds::state);
    case average:
      return resting("average", Holds::state);
    case batch:
      return {.name = "batch"};
    case gathered:
      return slot("gathered parameters", Holds::parameters, Elements::parameters);
    case whole_gradient:
      return slot("whole gradient", Holds::gradient, Elements::gradients);
    case shard_sum:
      return scratch("reduced shard", Holds::gradient, Elements::gradients);
    case wire:
      return scratch("wire", Holds::gradient, Elements::wire);
    case output:
      return activation("output", Holds::output);
    case saved:
      return activation("saved tensors", Holds::saved);
    case output_gradient:
      return activation("gradient of the output", Holds::output_gradient);
    case block_state: {
      RoleRow row = resting("untrained state", Holds::block_state);
      row.owner = Subject::block;
      return row;
    }
    case state_slot:
      return under_way("states under way", Holds::state);
    case gradient_slot:
      return under_way("gradient under way", Holds::gradient);
    case host_input:
      return {.name = "input on the host",
              .owner = Subject::block,
              .holds = Holds::output,
              .elements = Elements::mixed};
    case fetched_input:
      return {.name = "fetched input", .holds = Holds::output, .elements = Elements::mixed};
    case second_shard:
      return slot("second shard", Holds::parameters, Elements::parameters);
    case coded_parameters:
      return scratch("coded parameters", Holds::parameters, Elements::codes);
    case coded_gradient:
      return scratch("coded gradient", Holds::gradient, Elements::codes);
    case held:
      return activation("held tensors", Holds::held);
  }
  return {};
}

/// The rows of all values up to `last`.
template <typename Enum, Enum last>
constexpr auto all_rows() {
  std::array<decltype(row_of(last)), static_cast<std::size_t>(last) + 1> rows;
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = row_of(static_cast<Enum>(i));
  return rows;
}
constexpr auto kKindRows = all_rows<ActionKind, ActionKind::backward_weight>();
constexpr auto kRoleRows = all_rows<BufferRole, BufferRole::held>();

}  // namespace

const char* lane_name(Lane lane) { return kLaneNames.at(static_cast<std::size_t>(lane)); }

bool outlasts_step(Lane lane) {
  return lane == Lane::fetch || lane == Lane::update || lane == Lane::evict ||
         lane == Lane::host_out || lane == Lane::host || lane == Lane::host_in;
}

const KindRow& kind_row(ActionKind kind) { return kKindRows.at(static_cast<std::size_t>(kind)); }

bool ends_step(ActionKind kind) {
  const KindRow& row = kind_row(kind);
  return row.phase >= Phase::norm || row.serves == Phase::update;
}

const RoleRow& role_row(BufferRole role) { return kRoleRows.at(static_cast<std::size_t>(role)); }

}  // namespace dstrain
