#include "engine/program/builder/activations.h"

#include <algorithm>

#include "engine/base/error.h"

namespace dstrain::builder {
namespace {

/// One buffer more than micro-batches are under way at once, from the oldest to the newest, so that
/// one is filled while the others are in use; at least 2.
int num_batch_buffers(const Writer& writer) {
  std::vector<int> last_visit(to_index(writer.options.micro_batches), -1);
  for (int v = 0; v < static_cast<int>(writer.visits.size()); ++v)
    if (writer.visits[to_index(v)].pass != Pass::weight)
      last_visit[to_index(writer.visits[to_index(v)].micro_batch)] = v;
  int newest = 0, oldest = 0, max = 1;
  for (int v = 0; v < static_cast<int>(writer.visits.size()); ++v) {
    newest = std::max(newest, writer.visits[to_index(v)].micro_batch);
    while (oldest < newest && last_visit[to_index(oldest)] < v) ++oldest;
    max = std::max(max, newest - oldest + 1);
  }
  return max + 1;
}

}  // namespace

Batches::Batches(Writer& writer)
    : writer_(writer),
      load_(to_index(writer.options.micro_batches)),
      reader_(to_index(writer.options.micro_batches)),
      awaited_(to_index(writer.options.micro_batches)) {
  const int buffers = num_batch_buffers(writer);
  for (int b = 0; b < buffers; ++b)
    buffers_.push_back(writer.add_buffer(BufferRole::batch, -1, writer.cost.batch_bytes, 1));
}

void Batches::load(int micro_batch) {
  Action action{.micro_batch = micro_batch, .writes = {buffer(micro_batch)}};
  const int before = micro_batch - static_cast<int>(buffers_.size());
  if (before >= 0) action.after.push_back(reader_[to_index(before)].value());
  load_[to_index(micro_batch)] = writer_.add(ActionKind::load, std::move(action));
}

void Batches::before(int micro_batch) {
  while (next_ <= std::min(micro_batch + 1, writer_.options.micro_batches - 1)) load(next_++);
}

void Batches::wait(int micro_batch, Action& action) {
  if (awaited_[to_index(micro_batch)]) return;
  awaited_[to_index(micro_batch)] = true;
  action.after.push_back(load_[to_index(micro_batch)].value());
}

/// The buffers go on in turn from run to run: the first load of a run takes the one after that of
/// the last load before it.
void Batches::close() {
  const int count = static_cast<int>(buffers_.size());
  const int micro_batches = writer_.options.micro_batches;
  const auto first = std::ranges::find(writer_.program.actions, ActionKind::forward, &Action::kind);
  const int first_forward = static_cast<int>(first - writer_.program.actions.begin());
  for (int m = 0; m < std::min(count, micro_batches); ++m) {
    // In the run before, or in one before that, which has ended when that run's compute begins.
    const int before = micro_batches + m - count;
    const int reader = before >= 0 ? reader_[to_index(before)].value() : first_forward;
    writer_.action(load_[to_index(m)].value()).after_previous.push_back(reader);
  }
}

int Activations::take(BufferRole role, int block, int micro_batch) {
  std::vector<int>& empty = empty_[{role, block, writer_.lane_of(micro_batch)}];
  int id = -1;
  if (empty.empty()) {
    const BlockCost& cost = writer_.cost.blocks[to_index(block)];
    const Bytes bytes = role == BufferRole::saved  ? saved_bytes(cost, writer_.program)
                        : role == BufferRole::held ? cost.held_bytes
                                                   : cost.boundary_bytes();
    id = writer_.add_buffer(role, block, bytes, 1);
  } else {
    id = empty.back();
    empty.pop_back();
  }
  taken_[{role, block, micro_batch}] = id;
  return id;
}

std::optional<int> Activations::freed_by(int id) const {
  const auto found = freed_by_.find(id);
  return found == freed_by_.end() ? std::nullopt : std::optional(found->second);
}

int Activations::at(BufferRole role, int block, int micro_batch) const {
  const auto found = taken_.find({role, block, micro_batch});
  DSTRAIN_CHECK(found != taken_.end(), "no activation of that block and micro-batch");
  return found->second;
}

int Activations::give_back(BufferRole role, int block, int micro_batch) {
  const int id = at(role, block, micro_batch);
  taken_.erase({role, block, micro_batch});
  empty_[{role, block, writer_.lane_of(micro_batch)}].push_back(id);
  return id;
}

void Activations::discard(BufferRole role, int block, int micro_batch, int copied) {
  const int id = give_back(role, block, micro_batch);
  set_freed(
      id,
      writer_.add(ActionKind::discard,
                  {.block = block, .micro_batch = micro_batch, .frees = {id}, .after = {copied}}));
}

}  // namespace dstrain::builder
