#include "engine/program/builder/inputs.h"

#include <algorithm>

namespace dstrain::builder {
namespace {

/// So many of the last inputs stay where they are read again before they could be back.
constexpr int kStay = 2;
/// One is read, one arrives.
constexpr int kSlots = 2;

/// The head's forward and backward take longer than its input would to leave and come back, as in a
/// language model: so the inputs of the blocks before it have time for that.
bool head_hides_inputs(const Writer& writer) {
  // FLOPs of forward, a third of all, for each byte: 700 TFLOP/s, and 25 GB/s both ways.
  constexpr Flops kFlopsPerByte = 20'000;
  const int head = writer.num_blocks() - 1;
  if (head < 1 || !writer.own.local(head) || writer.recomputed(head)) return false;
  const auto bytes = static_cast<Flops>(writer.cost.blocks[to_index(head - 1)].boundary_bytes());
  return writer.cost.blocks[to_index(head)].forward_flops >= kFlopsPerByte * bytes;
}

}  // namespace

Inputs::Inputs(Writer& writer, Activations& activations)
    : writer_(writer), activations_(activations), leaves_(to_index(writer.num_blocks())) {
  if (writer.options.inputs == Place::device || !writer.training()) return;
  std::vector<int> candidates;
  for (int b = 0; b + 1 < writer.num_blocks(); ++b) {
    if (writer.own.local(b) && writer.own.local(b + 1) && writer.recomputed(b + 1) &&
        !writer.keeps_output(b))
      candidates.push_back(b);
  }
  const int stay = head_hides_inputs(writer) ? 0 : kStay;
  if (static_cast<int>(candidates.size()) <= stay) return;
  candidates.resize(candidates.size() - to_index(stay));
  Bytes largest = 0;
  for (const int b : candidates) {
    leaves_[to_index(b)] = true;
    largest = std::max(largest, writer.cost.blocks[to_index(b)].boundary_bytes());
  }
  for (int slot = 0; slot < std::min(kSlots, static_cast<int>(candidates.size())); ++slot)
    slots_.push_back(writer.add_buffer(BufferRole::fetched_input, -1, largest, 1));
}

void Inputs::after_forward(int block, int micro_batch, int index) {
  if (leaves(block)) {
    const int host = activations_.take(BufferRole::host_input, block, micro_batch);
    writer_.program.buffers[to_index(host)].place = writer_.options.inputs;
    const int output = activations_.at(BufferRole::output, block, micro_batch);
    const Key key = {block, micro_batch};
    evict_[key] = writer_.add(ActionKind::evict_input, {.block = block,
                                                        .micro_batch = micro_batch,
                                                        .reads = {output},
                                                        .writes = {host},
                                                        .after = {index}});
    to_discard_.insert(key);
  }
  // The next block has read it; one block late, so that the compute lane need not wait.
  discard_before(index);
}

void Inputs::discard_before(int action) {
  std::erase_if(to_discard_, [&](const Key& key) {
    const auto& [block, micro_batch] = key;
    // Not before the next block has run: it is the reader whose action is `action` or an earlier.
    const bool read =
        writer_.action(action).block > block || writer_.action(action).micro_batch != micro_batch;
    if (read) activations_.discard(BufferRole::output, block, micro_batch, evict_.at(key));
    return read;
  });
}

void Inputs::fetch(int block, int micro_batch) {
  const int slot = slots_[next_slot_];
  next_slot_ = (next_slot_ + 1) % slots_.size();
  const int host = activations_.give_back(BufferRole::host_input, block, micro_batch);
  Action action{.block = block,
                .micro_batch = micro_batch,
                .reads = {host},
                .writes = {slot},
                .frees = {host}};
  if (const auto freed = last_free_.find(slot); freed != last_free_.end())
    action.after.push_back(freed->second);
  const auto evict = evict_.find({block, micro_batch});
  action.after.push_back(evict->second);
  evict_.erase(evict);
  const int index = writer_.add(ActionKind::fetch_input, std::move(action));
  first_use_.try_emplace(slot, index);
  slot_of_[{block, micro_batch}] = slot;
  awaited_[{block, micro_batch}] = index;
}

void Inputs::before(int visit) {
  if (slots_.empty()) return;
  const std::vector<Visit>& visits = writer_.visits;
  const auto needs = [&](std::size_t v) {
    const bool backward = visits[v].pass == Pass::backward || visits[v].pass == Pass::input;
    return backward && leaves(visits[v].block - 1);
  };
  // This visit and the next one that reads one, as slots allow.
  const std::size_t own = to_index(visit);
  for (std::size_t v = std::max(next_visit_, own); v < std::min(own + 2, visits.size()); ++v) {
    // An output that has not been computed yet, of the next micro-batch, cannot be fetched.
    if (visits[own].pass == Pass::forward || visits[v].micro_batch != visits[own].micro_batch)
      break;
    if (needs(v)) fetch(visits[v].block - 1, visits[v].micro_batch);
    next_visit_ = v + 1;
  }
}

int Inputs::fetched(int block, int micro_batch) const {
  const auto found = slot_of_.find({block, micro_batch});
  return found == slot_of_.end() ? -1 : found->second;
}

void Inputs::wait(int block, int micro_batch, Action& action) {
  const auto found = awaited_.find({block, micro_batch});
  if (found == awaited_.end()) return;
  action.after.push_back(found->second);
  awaited_.erase(found);
}

void Inputs::freed(int block, int micro_batch, int index) {
  const auto found = slot_of_.find({block, micro_batch});
  if (found == slot_of_.end()) return;
  last_free_[found->second] = index;
  slot_of_.erase(found);
}

void Inputs::close() {
  for (const auto& [slot, action] : first_use_) {
    if (const auto freed = last_free_.find(slot); freed != last_free_.end())
      writer_.action(action).after_previous.push_back(freed->second);
  }
}

}  // namespace dstrain::builder
