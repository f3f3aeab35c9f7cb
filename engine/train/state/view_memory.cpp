#include "engine/train/state/view_memory.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/index.h"

namespace dstrain {
namespace {

Memory at_rest(const GroupMemory& memory, int group, Range range) {
  Memory found{.tensor = {}, .state = &memory, .group = group, .range = range};
  if (!memory.in_file(group)) found.tensor = memory.view(group, range);
  return found;
}

at::ScalarType type_of(const Memory& memory) {
  return memory.tensor.defined() ? memory.tensor.scalar_type() : memory.state->dtype();
}

std::int64_t elements_of(const Memory& memory) {
  return memory.tensor.defined() ? memory.tensor.numel() : memory.range.size();
}

bool is_slot(const Memory& memory) {
  return memory.state == nullptr && memory.tensor.defined() &&
         memory.tensor.scalar_type() == at::kByte;
}

/// The bytes of a slot as elements of a type; other memory as it is.
Memory typed(const Memory& memory, at::ScalarType type) {
  return is_slot(memory) ? Memory{.tensor = memory.tensor.view(type)} : memory;
}

/// The bytes of a slot as elements like those of `other`.
Memory typed_like(const Memory& slot, const Memory& other) {
  const at::ScalarType type = type_of(other);
  DSTRAIN_CHECK(
      elements_of(other) * static_cast<std::int64_t>(c10::elementSize(type)) == slot.tensor.numel(),
      "a part of a slot has another size than its values");
  return typed(slot, type);
}

}  // namespace

Memory Memory::narrow(std::int64_t begin, std::int64_t elements) const {
  Memory part = *this;
  if (tensor.defined()) part.tensor = tensor.narrow(0, begin, elements);
  part.range = {range.begin + begin, range.begin + begin + elements};
  return part;
}

std::int64_t ViewMemory::begin_of(std::int64_t begin, const std::optional<Share>& share) const {
  return begin + (share ? indices_.at(share->axis) * share->stride : 0);
}

std::vector<Memory> ViewMemory::of(const View& view, const Buffers& buffers) const {
  const Buffer& buffer = buffers.program.buffers[to_index(view.buffer)];
  const int group = buffer.owner;
  const std::int64_t begin = begin_of(view.begin, view.share);
  const Range range = {begin, begin + view.elements};
  switch (buffer.role) {
    case BufferRole::parameters:
      return {at_rest(*states_.parameters_at_rest(group).memory, group, range)};
    case BufferRole::master: {
      const StateStore::Resting master = states_.master_at_rest(group);
      return {at_rest(*master.memory, group, moved(range, master.begin))};
    }
    case BufferRole::moments: {
      std::vector<Memory> moments;
      for (int m = 0; m < states_.num_moments(); ++m) {
        if (buffer.moment >= 0 && m != buffer.moment) continue;
        const StateStore::Resting moment = states_.moment_at_rest(group, m);
        moments.push_back(at_rest(*moment.memory, group, moved(range, moment.begin)));
      }
      return moments;
    }
    case BufferRole::gradient: {
      const at::Tensor whole = states_.collecting_gradient(group);
      const at::Tensor own = whole.defined() ? whole : states_.own_gradient(group);
      return {{.tensor = own.narrow(0, range.begin, range.size())}};
    }
    default: {
      const at::Tensor& tensor = buffers.tensors[to_index(view.buffer)];
      DSTRAIN_CHECK(tensor.defined(), "a view of memory that blocks hold");
      return {{.tensor = tensor.narrow(0, range.begin, range.size())}};
    }
  }
}

at::Tensor ViewMemory::tensor(const View& view, const Buffers& buffers) const {
  const std::vector<Memory> found = of(view, buffers);
  DSTRAIN_CHECK(found.size() == 1 && found.front().tensor.defined(), "a view is of one tensor");
  return found.front().tensor;
}

std::vector<ViewMemory::Copy> ViewMemory::copies(const work::Move& move,
                                                 const Buffers& buffers) const {
  std::vector<Memory> from = of(move.from, buffers), to = of(move.to, buffers);
  if (is_slot(from.front()) && !is_slot(to.front()))
    from = {typed_like(from.front(), to.front())};
  else if (is_slot(to.front()) && !is_slot(from.front()))
    to = {typed_like(to.front(), from.front())};
  DSTRAIN_CHECK(from.size() == to.size(), "a move between different numbers of tensors");
  std::vector<Copy> copies;
  for (std::size_t i = 0; i < from.size(); ++i) copies.push_back({from[i], to[i]});
  return copies;
}

UpdateMemory ViewMemory::operands(const work::Update& update, const Buffers& buffers) const {
  const int group = update.group;
  UpdateMemory found;
  found.group = group;
  const auto buffer_of = [&](const View& view) -> const Buffer& {
    return buffers.program.buffers[to_index(view.buffer)];
  };
  found.on_host = buffer_of(update.gradient).place != Place::device;
  // What rests is counted from the rank's first element; in slots a part begins at 0.
  std::vector<View> views = update.states;
  views.push_back(update.gradient);
  const auto rests = std::ranges::find_if(
      views, [&](const View& view) { return dstrain::at_rest(buffer_of(view).role); });
  DSTRAIN_CHECK(rests != views.end(), "an update of which nothing rests");
  found.part = {rests->begin, rests->begin + rests->elements};
  found.gradient = typed(of(update.gradient, buffers).front(), states_.gradient_type());
  found.parameters = typed(of(update.parameters, buffers).front(),
                           states_.parameters_at_rest(group).memory->dtype());
  const StateStore::Resting master = states_.master_at_rest(group);
  for (const View& view : update.states) {
    if (buffer_of(view).role == BufferRole::average) continue;
    const std::vector<Memory> memories = of(view, buffers);
    if (!is_slot(memories.front())) {
      found.states.insert(found.states.end(), memories.begin(), memories.end());
      continue;
    }
    // Master weights come first, then the moments.
    const auto index = static_cast<int>(found.states.size()) - int{master.memory != nullptr};
    const GroupMemory* like =
        index < 0 ? master.memory : states_.moment_at_rest(group, index).memory;
    found.states.push_back(typed(memories.front(), like->dtype()));
  }
  const auto in_file = [](const Memory& memory) { return !memory.tensor.defined(); };
  found.in_file = in_file(found.parameters) || std::ranges::any_of(found.states, in_file);
  return found;
}

}  // namespace dstrain
