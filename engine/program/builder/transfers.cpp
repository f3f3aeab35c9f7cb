#include "engine/program/builder/transfers.h"

#include <algorithm>

namespace dstrain::builder {

Transfers::Transfers(Writer& writer, Activations& activations)
    : writer_(writer),
      activations_(activations),
      incoming_{Incoming{.lane = Lane::receive_down}, Incoming{.lane = Lane::receive_up}} {
  if (writer.layout.pipeline_degree() == 1) return;
  add_needs();
  add_arrivals();
}

void Transfers::add_needs() {
  for (int v = 0; v < static_cast<int>(writer_.visits.size()); ++v) {
    const Visit& visit = writer_.visits[to_index(v)];
    if (visit.pass == Pass::forward) {
      if (writer_.receives_input(visit.block))
        needs_.push_back({v, {BufferRole::output, visit.block - 1, visit.micro_batch}});
    } else if (visit.pass != Pass::weight && writer_.own.ends_chunk(visit.block) &&
               !writer_.own.local(visit.block + 1)) {
      needs_.push_back({v, {BufferRole::output_gradient, visit.block, visit.micro_batch}});
    }
  }
}

void Transfers::add_arrivals() {
  const int ranks = writer_.layout.pipeline_degree(), own = writer_.program.coordinate;
  for (const Arrival& arrival : arrivals(writer_.schedule, writer_.layout.stages,
                                         writer_.num_blocks(), writer_.first_trained, own)) {
    const BufferRole role = arrival.gradient ? BufferRole::output_gradient : BufferRole::output;
    const bool from_above = (arrival.from + 1) % ranks == own;
    const Tensor tensor{role, arrival.block, arrival.micro_batch};
    lane_of_[tensor] = from_above ? 0 : 1;
    incoming_.at(lane_of_[tensor]).tensors.push_back({tensor, arrival.visit});
  }
}

void Transfers::receive(Incoming& lane) {
  const Tensor& tensor = lane.tensors.at(lane.next++).first;
  const auto& [role, block, micro_batch] = tensor;
  Action action{.lane = lane.lane,
                .block = block,
                .micro_batch = micro_batch,
                .writes = {activations_.take(role, block, micro_batch)}};
  // Receives of a lane run in turn: a wait for an earlier action than one waited for says nothing.
  const auto freed = activations_.freed_by(action.writes.front());
  if (freed && *freed > lane.waited) {
    lane.waited = *freed;
    action.after.push_back(*freed);
  }
  begun_.insert(tensor);
  received_[tensor] = writer_.add(ActionKind::receive, std::move(action));
}

/// One transfer ahead of the visit: a rank that waits for the next one has work meanwhile.
void Transfers::before(int visit) {
  constexpr std::size_t kAhead = 1;
  const std::size_t stay = writer_.visits[to_index(visit)].stay;
  for (Incoming& lane : incoming_) {
    while (lane.next < lane.tensors.size() && lane.tensors[lane.next].second <= stay) receive(lane);
  }
  std::size_t until = next_need_;
  while (until < needs_.size() && needs_[until].visit <= visit) ++until;
  until = std::min(until + kAhead, needs_.size());
  for (; next_need_ < until; ++next_need_) {
    const Tensor& tensor = needs_[next_need_].tensor;
    Incoming& lane = incoming_.at(lane_of_.at(tensor));
    while (!begun_.contains(tensor)) receive(lane);
  }
}

void Transfers::wait(BufferRole role, int block, int micro_batch, Action& action) {
  const auto found = received_.find({role, block, micro_batch});
  if (found == received_.end()) return;
  action.after.push_back(found->second);
  received_.erase(found);
}

void Transfers::send(BufferRole role, int block, int micro_batch, int index) {
  const Tensor tensor{role, block, micro_batch};
  const Stages& stages = writer_.layout.stages;
  const int to = stages.rank_of(role == BufferRole::output ? block + 1 : block);
  // Each of two ranks is above and below the other; all then goes down.
  const bool down = to == (writer_.program.coordinate + 1) % writer_.layout.pipeline_degree();
  Action action{.lane = down ? Lane::send_down : Lane::send_up,
                .block = block,
                .micro_batch = micro_batch,
                .reads = {activations_.at(role, block, micro_batch)},
                .after = {index}};
  const int sent = writer_.add(ActionKind::send, std::move(action));
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
  for (const Lane lane : {Lane::receive_down, Lane::receive_up}) {
    int waited = -1;
    for (Action& action : writer_.program.actions) {
      if (action.lane != lane) continue;
      if (!action.after.empty()) break;
      const int freed = activations_.freed_by(action.writes.front()).value();
      if (freed <= waited) continue;
      waited = freed;
      action.after_previous.push_back(freed);
    }
  }
}

}  // namespace dstrain::builder
