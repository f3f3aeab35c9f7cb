#include "engine/train/state/offloader.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/units.h"
#include "engine/device/device.h"
#include "engine/device/pinned.h"
#include "engine/kernels/copy/copy.h"
#include "engine/kernels/linear/output_gradient.h"

namespace dstrain {
namespace {

/// Elements that one thread of an update takes at once: the states of one piece fit into its cache.
constexpr std::int64_t kGrain = std::int64_t{1} << 15;

/// A GPU copies to and from page-locked memory itself.
bool needs_staging(const at::Tensor& memory, const Stream& stream) {
  return stream.device().is_cuda() && memory.is_cpu() && !memory.is_pinned();
}

/// `states`: as those of UpdateMemory. Without master weights the parameters are these.
PartMemory part_memory(Range range, const at::Tensor& gradient, const at::Tensor& parameters,
                       const Tensors& states, int num_moments) {
  const auto moments = states.end() - num_moments;
  return {.range = range,
          .master = moments == states.begin() ? parameters : states.front(),
          .moments = {moments, states.end()},
          .gradient = gradient,
          .parameters = parameters};
}

}  // namespace

Offloader::Offloader(const Program& training, StateStore& states, Updater& updater,
                     const OffloaderOptions& options)
    : states_(states), updater_(updater), options_(options) {
  goes_on_ = std::ranges::any_of(training.actions,
                                 [](const Action& action) { return outlasts_step(action.lane); });
  streams_ = streams_states(training);
  if (!training.buffers_of(BufferRole::gradient_slot).empty()) {
    host_ = std::make_unique<HostWork>(
        options.places.device,
        HostWork::Options{.threads = options.threads, .cores = options.cores});
  }
  Bytes inputs = 0;
  for (const int id : training.buffers_of(BufferRole::host_input)) {
    const Buffer& buffer = training.buffers[to_index(id)];
    if (access_of(buffer.place) != Access::file) continue;
    input_offset_[id] = inputs;
    inputs += round_up(buffer.bytes(), HostFile::kAlignment);
  }
  if (inputs > 0) input_file_ = std::make_unique<HostFile>(options.places.path, inputs);
}

/// Copies and updates go on beside the step that comes next, if any: memory goes after them.
Offloader::~Offloader() {
  try {
    if (goes_on_ || !input_meta_.empty()) synchronize(options_.places.device);
  } catch (const std::exception&) {
    // The device has failed, and the thread that waited for it knows.
  }
}

at::Tensor Offloader::allocate(const Buffer& buffer) {
  if (access_of(buffer.place) == Access::file) return {};
  if (buffer.place == Place::device) {
    const auto type = at::TensorOptions().dtype(at::kByte).device(options_.places.device);
    return buffer.transient ? at::empty({buffer.bytes()}, type) : at::zeros({buffer.bytes()}, type);
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

void Offloader::copy_pinned(const at::Tensor& to, const at::Tensor& from, bool awaited) const {
  if (awaited && streams_)
    copy_beside(to, from);
  else
    to.copy_(from, /*non_blocking=*/true);
}

void Offloader::to_device(const HostPart& from, const at::Tensor& to, const Stream& stream,
                          bool awaited) {
  if (!from.memory.defined()) {
    staged(stream).to_device(stream, to, from.file);
  } else if (needs_staging(from.memory, stream)) {
    staged(stream).to_device(stream, to, from.memory);
  } else {
    copy_pinned(to, from.memory, awaited);
  }
}

void Offloader::to_host(const HostPart& to, const at::Tensor& from, const Stream& stream,
                        bool awaited) {
  if (!to.memory.defined()) {
    staged(stream).to_host(stream, to.file, from);
  } else if (needs_staging(to.memory, stream)) {
    staged(stream).to_host(stream, to.memory, from);
  } else {
    copy_pinned(to.memory, from, awaited);
  }
}

Offloader::HostPart Offloader::part_of_input(int id, const at::Tensor& host, Bytes begin,
                                             Bytes bytes) const {
  if (host.defined()) return {.memory = host.narrow(0, begin, bytes), .file = {}};
  return {.memory = {},
          .file = {.file = input_file_.get(), .offset = input_offset_.at(id) + begin}};
}

void Offloader::copy(const Memory& from, const Memory& to, const Stream& stream, bool awaited) {
  const auto part = [](const Memory& memory) -> HostPart {
    if (memory.tensor.defined()) return {.memory = memory.tensor, .file = {}};
    return {.memory = {}, .file = memory.file()};
  };
  const bool to_file = !to.tensor.defined();
  if (to_file || needs_staging(to.tensor, stream)) {
    to_host(part(to), from.tensor, stream, awaited);
  } else {
    to_device(part(from), to.tensor, stream, awaited);
  }
}

void Offloader::copy_control(const at::Tensor& control) {
  if (!host_) return;
  if (!control.is_cuda()) {
    control_ = control;
    return;
  }
  if (!control_.defined())
    control_ = host_tensor(control.sizes(), at::kFloat, options_.places.device);
  copy_pinned(control_, control, /*awaited=*/true);
}

void Offloader::update(const UpdateMemory& memory, double lr, const at::Tensor& control,
                       const Stream& stream) {
  if (memory.on_host) return update_on_host(memory, lr, stream);
  Tensors states;
  for (const Memory& state : memory.states) states.push_back(state.tensor);
  const Range range = moved(memory.part, states_.own_range(memory.group).begin);
  updater_.update_part(memory.group, lr, control,
                       part_memory(range, memory.gradient.tensor, memory.parameters.tensor, states,
                                   states_.num_moments()));
}

namespace {

/// Values while the CPU updates them: what is in memory as it is, what is in a file in a copy.
class HostValues {
 public:
  explicit HostValues(Memory memory)
      : memory_(std::move(memory)),
        values_(memory_.tensor.defined() ? memory_.tensor
                                         : memory_.state->load(memory_.group, memory_.range)) {}
  [[nodiscard]] const at::Tensor& values() const { return values_; }
  void write_back() const {
    if (!memory_.tensor.defined()) memory_.state->store(memory_.group, memory_.range, values_);
  }

 private:
  Memory memory_;
  at::Tensor values_;
};

}  // namespace

void Offloader::update_on_host(const UpdateMemory& memory, double lr, const Stream& stream) {
  const std::int64_t first = states_.own_range(memory.group).begin + memory.part.begin;
  // Each thread reads, updates and writes pieces of its own, so that a disk has several to do.
  const auto piece = [this, memory, lr, first](std::int64_t begin, std::int64_t end) {
    const auto values_of = [begin, end](const Memory& whole) {
      return HostValues(whole.narrow(begin, end - begin));
    };
    const HostValues parameters = values_of(memory.parameters);
    std::vector<HostValues> all;
    Tensors states;
    for (const Memory& state : memory.states) {
      all.push_back(values_of(state));
      states.push_back(all.back().values());
    }
    const PartMemory part = part_memory({first + begin, first + end},
                                        memory.gradient.tensor.narrow(0, begin, end - begin),
                                        parameters.values(), states, states_.num_moments());
    updater_.update_part_here(memory.group, lr, control_, part, 0, end - begin);
    for (const HostValues& values : all) values.write_back();
    parameters.write_back();
  };
  // A file takes larger pieces.
  const std::int64_t grain = memory.in_file ? 8 * kGrain : kGrain;
  host_->enqueue(stream, [piece, count = memory.part.size(), grain](HostPool& pool) {
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
    to_host(part_of_input(id, host, begin, bytes), from, stream, /*awaited=*/true);
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
    to_device(part_of_input(id, host, begin, bytes), to, stream, /*awaited=*/true);
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
