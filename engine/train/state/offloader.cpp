#include "engine/train/state/offloader.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/units.h"
#include "engine/device/device.h"
#include "engine/device/pinned.h"
#include "engine/kernels/linear/output_gradient.h"

namespace dstrain {
namespace {

/// Elements that one thread of an update takes at once: the states of one piece fit into its cache.
constexpr std::int64_t kGrain = std::int64_t{1} << 15;

bool updates_on_host(const Layout& layout) {
  return std::ranges::any_of(layout.groups, [](const GroupLayout& group) {
    return group.trainable && group.update_method == UpdateMethod::host;
  });
}

/// `count` elements of `type` from byte `begin` of a slot.
at::Tensor view_of(const at::Tensor& slot, Bytes begin, std::int64_t count, at::ScalarType type) {
  const auto bytes = count * static_cast<Bytes>(c10::elementSize(type));
  return slot.narrow(0, begin, bytes).view(type);
}

/// A GPU copies to and from page-locked memory itself.
bool needs_staging(const at::Tensor& memory, const Stream& stream) {
  return stream.device().is_cuda() && !memory.is_pinned();
}

}  // namespace

Offloader::Offloader(const Program& training, const Layout& layout, StateStore& states,
                     Updater& updater, const OffloaderOptions& options)
    : layout_(layout),
      states_(states),
      updater_(updater),
      options_(options),
      narrow_(layout.widths.master == 0) {
  if (updates_on_host(layout)) {
    host_ = std::make_unique<HostWork>(
        options.places.device,
        HostWork::Options{.threads = options.threads, .cores = options.cores});
  }
  Bytes inputs = 0;
  for (const int id : training.buffers_of(BufferRole::host_input)) {
    const Buffer& buffer = training.buffers[to_index(id)];
    if (buffer.place != Place::file) continue;
    input_offset_[id] = inputs;
    inputs += round_up(buffer.bytes(), HostFile::kAlignment);
  }
  if (inputs > 0) input_file_ = std::make_unique<HostFile>(options.places.path, inputs);
}

/// Copies and updates go on beside the step that comes next, if any: memory goes after them.
Offloader::~Offloader() {
  try {
    if (layout_.chunk > 0 || !input_meta_.empty()) synchronize(options_.places.device);
  } catch (const std::exception&) {
    // The device has failed, and the thread that waited for it knows.
  }
}

at::Tensor Offloader::allocate(const Buffer& buffer) {
  if (buffer.place == Place::file) return {};
  if (buffer.place == Place::device) {
    return at::zeros({buffer.bytes()},
                     at::TensorOptions().dtype(at::kByte).device(options_.places.device));
  }
  return host_arena(buffer.bytes(), buffer.place, options_.places, role_name(buffer.role))
      .tensor(at::kByte, buffer.bytes());
}

/// Each lane has buffers of its own, so that lanes do not wait for each other.
StagedCopy& Offloader::staged(const Stream& stream) {
  std::unique_ptr<StagedCopy>& copy = staged_[stream.handle()];
  if (!copy) {
    copy = std::make_unique<StagedCopy>(
        options_.places.device,
        StagedCopy::Options{
            .work = {.threads = std::max(1, options_.threads / 2), .cores = options_.cores}});
  }
  return *copy;
}

void Offloader::to_device(const HostPart& from, const at::Tensor& to, const Stream& stream) {
  if (!from.memory.defined()) {
    staged(stream).to_device(stream, to, from.file);
  } else if (needs_staging(from.memory, stream)) {
    staged(stream).to_device(stream, to, from.memory);
  } else {
    to.copy_(from.memory, /*non_blocking=*/true);
  }
}

void Offloader::to_host(const HostPart& to, const at::Tensor& from, const Stream& stream) {
  if (!to.memory.defined()) {
    staged(stream).to_host(stream, to.file, from);
  } else if (needs_staging(to.memory, stream)) {
    staged(stream).to_host(stream, to.memory, from);
  } else {
    to.memory.copy_(from, /*non_blocking=*/true);
  }
}

Offloader::HostPart Offloader::part_of(const StateStore::Resting& at, int group, Range range) {
  const Range own = moved(range, at.begin);
  if (at.memory->in_file(group)) return {.memory = {}, .file = at.memory->in_file(group, own)};
  return {.memory = at.memory->view(group, own), .file = {}};
}

Offloader::HostPart Offloader::part_of_input(int id, const at::Tensor& host, Bytes begin,
                                             Bytes bytes) const {
  if (host.defined()) return {.memory = host.narrow(0, begin, bytes), .file = {}};
  return {.memory = {},
          .file = {.file = input_file_.get(), .offset = input_offset_.at(id) + begin}};
}

void Offloader::fetch_parameters(int group, const at::Tensor& own, const Stream& stream) {
  to_device(part_of(states_.parameters_at_rest(group), group, {0, own.numel()}), own, stream);
}

std::vector<Offloader::Travelling> Offloader::in_state_slot(const Action& action,
                                                            const at::Tensor& slot) const {
  const int group = action.group;
  const std::int64_t count = part(action).size();
  std::vector<Travelling> all;
  Bytes begin = 0;
  const auto add = [&](const StateStore::Resting& at) {
    const at::ScalarType type = at.memory->dtype();
    all.push_back({at, view_of(slot, begin, count, type)});
    begin += count * static_cast<Bytes>(c10::elementSize(type));
  };
  if (kind(group).state_place != Place::device) {
    if (!narrow_) add(states_.master_at_rest(group));
    for (int m = 0; m < states_.num_moments(); ++m) add(states_.moment_at_rest(group, m));
  }
  if (kind(group).parameter_place != Place::device) add(states_.parameters_at_rest(group));
  return all;
}

at::Tensor Offloader::own_gradient(const Action& action) const {
  const Range range = part(action);
  return states_.own_gradient(action.group).narrow(0, range.begin, range.size());
}

at::Tensor Offloader::gradient_in(const Action& action, const at::Tensor& slot) const {
  return view_of(slot, 0, part(action).size(), states_.gradient_type());
}

at::Tensor Offloader::parameters_in(const Action& action, const at::Tensor& slot) const {
  const std::int64_t count = part(action).size();
  return view_of(slot, count * layout_.widths.gradient, count,
                 states_.parameters_at_rest(action.group).memory->dtype());
}

void Offloader::fetch_states(const Action& action, const at::Tensor& slot, const Stream& stream) {
  const int group = action.group;
  const Range range = part(action);
  if (kind(group).update_method == UpdateMethod::host) {
    states_.own_parameters(group)
        .narrow(0, range.begin, range.size())
        .copy_(parameters_in(action, slot), /*non_blocking=*/true);
    return;
  }
  for (const Travelling& state : in_state_slot(action, slot)) {
    // New parameters beside master weights only leave.
    const bool parameters = state.at.memory == states_.parameters_at_rest(group).memory;
    if (!parameters || narrow_) to_device(part_of(state.at, group, range), state.in_slot, stream);
  }
}

void Offloader::evict_states(const Action& action, const at::Tensor& slot, const Stream& stream) {
  const int group = action.group;
  const Range range = part(action);
  if (kind(group).update_method == UpdateMethod::host) {
    gradient_in(action, slot).copy_(own_gradient(action), /*non_blocking=*/true);
    if (narrow_ && kind(group).parameter_place == Place::device) {
      parameters_in(action, slot)
          .copy_(states_.own_parameters(group).narrow(0, range.begin, range.size()),
                 /*non_blocking=*/true);
    }
    return;
  }
  for (const Travelling& state : in_state_slot(action, slot))
    to_host(part_of(state.at, group, range), state.in_slot, stream);
}

void Offloader::copy_control(const at::Tensor& control) {
  if (!host_) return;
  if (!control.is_cuda()) {
    control_ = control;
    return;
  }
  if (!control_.defined())
    control_ = host_tensor(control.sizes(), at::kFloat, options_.places.device);
  control_.copy_(control, /*non_blocking=*/true);
}

void Offloader::update(const Action& action, double lr, const at::Tensor& control,
                       const at::Tensor& slot, const Stream& stream) {
  const int group = action.group;
  if (kind(group).update_method == UpdateMethod::host) {
    update_on_host(action, lr, slot, stream);
    return;
  }
  const Range range = part(action);
  const auto resting = [&](const StateStore::Resting& at) {
    return at.memory->view(group, moved(range, at.begin));
  };
  const bool states_travel = kind(group).state_place != Place::device,
             parameters_travel = kind(group).parameter_place != Place::device;
  const std::vector<Travelling> in_slot = in_state_slot(action, slot);
  PartMemory memory{.range = moved(range, states_.own_range(group).begin),
                    .master = {},
                    .moments = {},
                    .gradient = own_gradient(action),
                    .parameters = parameters_travel ? in_slot.back().in_slot
                                                    : resting(states_.parameters_at_rest(group))};
  memory.master = narrow_         ? memory.parameters
                  : states_travel ? in_slot.front().in_slot
                                  : resting(states_.master_at_rest(group));
  for (int m = 0; m < states_.num_moments(); ++m) {
    memory.moments.push_back(states_travel ? in_slot[to_index(m + (narrow_ ? 0 : 1))].in_slot
                                           : resting(states_.moment_at_rest(group, m)));
  }
  updater_.update_part(group, lr, control, memory);
}

namespace {

/// A state while the CPU updates it: what is in memory as it is, what is in a file in a copy.
class HostState {
 public:
  HostState(const StateStore::Resting& at, int group, Range range)
      : at_(at),
        group_(group),
        range_(moved(range, at.begin)),
        values_(at.memory->load(group, range_)) {}
  [[nodiscard]] const at::Tensor& values() const { return values_; }
  void write_back() const {
    if (at_.memory->in_file(group_)) at_.memory->store(group_, range_, values_);
  }

 private:
  StateStore::Resting at_;
  int group_;
  Range range_;
  at::Tensor values_;
};

}  // namespace

void Offloader::update_on_host(const Action& action, double lr, const at::Tensor& slot,
                               const Stream& stream) {
  const int group = action.group;
  const Range range = part(action);
  const bool parameters_travel = kind(group).parameter_place == Place::device;
  const at::Tensor gradient = gradient_in(action, slot),
                   result = parameters_travel ? parameters_in(action, slot) : at::Tensor();
  const std::int64_t first = states_.own_range(group).begin + range.begin;
  // Each thread reads, updates and writes pieces of its own, so that a disk has several to do.
  const auto piece = [this, group, lr, range, gradient, result, first](std::int64_t begin,
                                                                       std::int64_t end) {
    const Range own = {range.begin + begin, range.begin + end};
    std::vector<HostState> states;
    if (!narrow_) states.emplace_back(states_.master_at_rest(group), group, own);
    for (int m = 0; m < states_.num_moments(); ++m)
      states.emplace_back(states_.moment_at_rest(group, m), group, own);
    if (!result.defined()) states.emplace_back(states_.parameters_at_rest(group), group, own);
    const std::size_t moments = narrow_ ? 0 : 1;
    const at::Tensor parameters =
        result.defined() ? result.narrow(0, begin, end - begin) : states.back().values();
    PartMemory memory{.range = {first + begin, first + end},
                      .master = narrow_ ? parameters : states.front().values(),
                      .moments = {},
                      .gradient = gradient.narrow(0, begin, end - begin),
                      .parameters = parameters};
    for (int m = 0; m < states_.num_moments(); ++m)
      memory.moments.push_back(states[moments + to_index(m)].values());
    updater_.update_part_here(group, lr, control_, memory, 0, end - begin);
    for (const HostState& state : states) state.write_back();
  };
  // A file takes larger pieces.
  const bool file =
      kind(group).state_place == Place::file || kind(group).parameter_place == Place::file;
  const std::int64_t grain = file ? 8 * kGrain : kGrain;
  host_->enqueue(stream, [piece, count = range.size(), grain](HostPool& pool) {
    pool.parallel_for(count, grain, piece);
  });
}

void Offloader::evict_input(int id, const at::Tensor& host, const Tensors& outputs,
                            const Stream& stream) {
  Tensors& meta = input_meta_[id];
  meta.clear();
  Bytes begin = 0;
  for (const at::Tensor& output : outputs) {
    const auto bytes = static_cast<Bytes>(output.nbytes());
    const at::Tensor from = output.detach().contiguous().view({-1}).view(at::kByte);
    to_host(part_of_input(id, host, begin, bytes), from, stream);
    meta.push_back(at::empty(output.sizes(), output.options().device(at::kMeta)));
    ops::copy_needs(output, meta.back());
    begin += bytes;
  }
}

Tensors Offloader::fetch_input(int id, const at::Tensor& host, const at::Tensor& slot,
                               const Stream& stream) {
  Tensors fetched;
  Bytes begin = 0;
  for (const at::Tensor& like : input_meta_.at(id)) {
    const auto bytes = static_cast<Bytes>(like.nbytes());
    const at::Tensor to = slot.narrow(0, begin, bytes);
    to_device(part_of_input(id, host, begin, bytes), to, stream);
    fetched.push_back(to.view(like.scalar_type()).view(like.sizes()));
    ops::copy_needs(like, fetched.back());
    begin += bytes;
  }
  return fetched;
}

void Offloader::rethrow() const {
  if (host_) host_->rethrow();
  for (const auto& [stream, copy] : staged_) copy->rethrow();
}

}  // namespace dstrain
