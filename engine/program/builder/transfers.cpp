#include "engine/program/builder/transfers.h"

#include <algorithm>

namespace dstrain::builder {

Transfers::Transfers(Writer& writer, Activations& activations)
    : writer_(writer), activations_(activations) {
  for (int v = 0; v < static_cast<int>(writer.visits.size()); ++v) {
    const auto& [block, micro_batch, pass] = writer.visits[to_index(v)];
    if (pass == Pass::forward && block > 0 && !writer.own.local(block - 1)) {
      needs_.push_back({v, {BufferRole::output, block - 1, micro_batch}});
    } else if (pass == Pass::backward && writer.own.ends_chunk(block) &&
               !writer.own.local(block + 1)) {
      needs_.push_back({v, {BufferRole::output_gradient, block, micro_batch}});
    }
  }
}

/// The coordinate of the other rank of the transfer.
int Transfers::other_side(const Tensor& tensor) const {
  const Stages& stages = writer_.layout.stages;
  return stages.rank_of(writer_.own.local(tensor.block) ? tensor.block + 1 : tensor.block);
}

void Transfers::receive(const Tensor& tensor) {
  const auto& [role, block, micro_batch] = tensor;
  Action action{.block = block,
                .micro_batch = micro_batch,
                .writes = {activations_.take(role, block, micro_batch)}};
  const int ranks = writer_.layout.pipeline_degree();
  const bool from_above = (other_side(tensor) + 1) % ranks == writer_.program.coordinate;
  const ActionKind kind = from_above ? ActionKind::receive_down : ActionKind::receive_up;
  // Receives of a lane run in turn: a wait for an earlier action than one waited for says nothing.
  const auto freed = activations_.freed_by(action.writes.front());
  int& waited = waited_.try_emplace(kind, -1).first->second;
  if (freed && *freed > waited) {
    waited = *freed;
    action.after.push_back(*freed);
  }
  received_[tensor] = writer_.add(kind, std::move(action));
}

/// One transfer ahead of the visit: a rank that waits for the next one has work meanwhile.
void Transfers::before(int visit) {
  constexpr std::size_t kAhead = 1;
  std::size_t until = next_need_;
  while (until < needs_.size() && needs_[until].visit <= visit) ++until;
  until = std::min(until + kAhead, needs_.size());
  for (; next_need_ < until; ++next_need_) receive(needs_[next_need_].tensor);
}

void Transfers::wait(BufferRole role, int block, int micro_batch, Action& action) {
  const auto found = received_.find({role, block, micro_batch});
  if (found == received_.end()) return;
  action.after.push_back(found->second);
  received_.erase(found);
}

void Transfers::send(BufferRole role, int block, int micro_batch, int index) {
  const Tensor tensor{role, block, micro_batch};
  // Of two ranks each is above and below the other; all then goes down.
  const bool down =
      other_side(tensor) == (writer_.program.coordinate + 1) % writer_.layout.pipeline_degree();
  Action action{.block = block,
                .micro_batch = micro_batch,
                .reads = {activations_.at(role, block, micro_batch)},
                .after = {index}};
  const int sent =
      writer_.add(down ? ActionKind::send_down : ActionKind::send_up, std::move(action));
  // One transfer late, so that the compute lane need not wait for it.
  discard_before(sent);
  if (role == BufferRole::output && writer_.keeps_output(block)) {
    sent_[tensor] = sent;
  } else {
    to_discard_.push_back({tensor, sent});
  }
}

void Transfers::discard_before(int send) {
  std::erase_if(to_discard_, [&](const auto& entry) {
    if (entry.second >= send) return false;
    discard(entry.first, entry.second);
    return true;
  });
}

void Transfers::discard(const Tensor& tensor, int send) {
  activations_.discard(tensor.role, tensor.block, tensor.micro_batch, send);
}

void Transfers::discard(int block, int micro_batch) {
  std::erase_if(to_discard_, [&](const auto& entry) {
    if (entry.first != Tensor{BufferRole::output, block, micro_batch}) return false;
    discard(entry.first, entry.second);
    return true;
  });
}

void Transfers::wait_sent(BufferRole role, int block, int micro_batch, Action& action) {
  const auto found = sent_.find({role, block, micro_batch});
  if (found == sent_.end()) return;
  action.after.push_back(found->second);
  sent_.erase(found);
}

void Transfers::finish() { discard_before(static_cast<int>(writer_.program.actions.size())); }

void Transfers::close() {
  for (const ActionKind kind : {ActionKind::receive_down, ActionKind::receive_up}) {
    int waited = -1;
    for (Action& action : writer_.program.actions) {
      if (action.kind != kind) continue;
      if (!action.after.empty()) break;
      const int freed = activations_.freed_by(action.writes.front()).value();
      if (freed <= waited) continue;
      waited = freed;
      action.after_previous.push_back(freed);
    }
  }
}

}  // namespace dstrain::builder
