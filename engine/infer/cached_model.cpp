#include "engine/infer/cached_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "engine/base/error.h"
#include "engine/kernels/loss/ops_likely_class.h"
#include "engine/kernels/taken_sizes.h"

namespace dstrain {
namespace {

/// Rows of a pass that reads prompts: products are chosen for each number of rows, so on a GPU
/// there are few such numbers.
std::int64_t padded_rows(std::int64_t rows, bool is_gpu) {
  constexpr std::int64_t kMinRows = 16, kManyRows = 4096;
  if (!is_gpu) return rows;
  if (rows > kManyRows) return (rows + kManyRows - 1) / kManyRows * kManyRows;
  return static_cast<std::int64_t>(
      std::bit_ceil(static_cast<std::uint64_t>(std::max(kMinRows, rows))));
}

/// Room for the choice of `rows` tokens: [2, rows] int64, tokens and behind them the logarithms of
/// their probabilities in fp32, so that one copy brings both.
at::Tensor room_for_choice(std::int64_t rows, const at::TensorOptions& options) {
  return at::zeros({2, rows}, options.dtype(at::kLong));
}
at::Tensor tokens_of(const at::Tensor& choice) { return choice.select(0, 0); }
at::Tensor logarithms_of(const at::Tensor& choice) {
  return choice.select(0, 1).view(at::kFloat).narrow(0, 0, choice.size(1));
}

Chosen chosen_of(const at::Tensor& choice) {
  const auto* tokens = tokens_of(choice).const_data_ptr<std::int64_t>();
  const at::Tensor logarithms = logarithms_of(choice);
  const float* first = logarithms.const_data_ptr<float>();
  return {.tokens = {tokens, tokens + choice.size(1)},
          .log_probabilities = {first, first + choice.size(1)}};
}

/// Through pinned memory, so that the host does not wait for what the device does before.
template <typename T>
at::Tensor on_device(const std::vector<T>& values, at::ScalarType type, c10::Device device) {
  const at::Tensor host =
      at::empty({static_cast<std::int64_t>(values.size())},
                at::TensorOptions().dtype(type).pinned_memory(device.is_cuda()));
  std::ranges::copy(values, host.mutable_data_ptr<T>());
  return host.to(device, /*non_blocking=*/true);
}

LanguageHead& head_of(const Model& model) {
  auto* const head = dynamic_cast<LanguageHead*>(model.blocks.back().get());
  DSTRAIN_CHECK(head != nullptr, "a model without a language head");
  return *head;
}

}  // namespace

CachedModel::CachedModel(Model& model, c10::Device device, at::ScalarType dtype, std::int64_t slots,
                         std::int64_t capacity)
    : model_(model),
      head_(head_of(model)),
      device_(device),
      stream_(device.is_cuda() ? Stream::from_pool(device) : Stream(device)),
      slots_(slots),
      capacity_(capacity) {
  const StreamScope scope(stream_);
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  for (const auto& block : model.blocks) {
    ops::KeyValues cache;
    // Rows that fill a pass up go into one more slot.
    if (const auto kept = block->key_values()) {
      cache.keys = at::zeros({slots + 1, capacity, kept->heads, kept->head_dim}, options);
      cache.values = at::zeros(cache.keys.sizes(), options);
    }
    caches_.push_back(std::move(cache));
  }
  const auto index = at::TensorOptions().dtype(at::kInt).device(device);
  const auto host = at::TensorOptions().pinned_memory(device.is_cuda());
  for (std::size_t i = 0; i < kStepsOnWay; ++i)
    host_steps_.push_back({.tokens = at::zeros({slots}, host.dtype(at::kLong)),
                           .positions = at::zeros({slots}, host.dtype(at::kInt)),
                           .choice = room_for_choice(slots, host),
                           .done = Event(device)});
  step_choice_ = room_for_choice(slots, index);
  step_ = {.tokens = tokens_of(step_choice_).view({slots, 1}),
           .sequences = {.starts = at::arange(slots + 1, index),
                         .longest = capacity,
                         .positions = at::zeros({slots}, index)},
           .slots = at::arange(slots, index)};
  // The experts' products are of sizes that the host asks for.
  if (!device.is_cuda() || model.experts_per_token > 0) steps_before_graph_ = -1;
}

std::optional<SizeMisfit> CachedModel::misfit(const Model& model) {
  // Which multiples they are, attention of whole samples says.
  constexpr TakenSizes kTaken = kernels::cached_head_dims(/*turned=*/false);
  for (const auto& block : model.blocks) {
    const auto kept = block->key_values();
    if (kept && !kTaken.has(kept->head_dim))
      return SizeMisfit{.of = SizeOf::head, .size = kept->head_dim, .taken = kTaken};
  }
  return std::nullopt;
}

Bytes CachedModel::slot_bytes(const Model& model, at::ScalarType dtype, std::int64_t capacity) {
  Bytes bytes = Bytes{8} * static_cast<Bytes>(model.vocab_size);
  for (const auto& block : model.blocks) {
    if (const auto kept = block->key_values())
      bytes +=
          capacity * 2 * kept->heads * kept->head_dim * static_cast<Bytes>(c10::elementSize(dtype));
  }
  return bytes;
}

std::int64_t CachedModel::rows_at_once() const {
  constexpr std::int64_t kMinRows = 4096, kElements = std::int64_t{1} << 23;
  return std::max(kMinRows, kElements / head_.width());
}

at::Tensor CachedModel::forward(const Pass& pass) {
  const at::NoGradGuard no_gradients;
  const Batch batch{.tokens = pass.tokens, .sequences = pass.sequences};
  ops::CachedRows rows{.slots = pass.slots, .whole = pass.whole, .cache = {}};
  BlockContext context{.mode = Mode::generate, .cached = &rows};
  Tensors state;
  for (std::size_t i = 0; i + 1 < model_.blocks.size(); ++i) {
    rows.cache = caches_[i];
    state = model_.blocks[i]->forward(state, batch, context);
  }
  if (pass.last.defined()) {
    for (at::Tensor& tensor : state) tensor = tensor.index_select(0, pass.last);
  }
  return head_.logits(state);
}

CachedModel::Reading CachedModel::read(std::span<const std::vector<std::int64_t>> prompts,
                                       std::span<const std::int64_t> slots) {
  DSTRAIN_CHECK(!prompts.empty() && prompts.size() == slots.size(), "prompts and slots");
  std::vector<std::int64_t> tokens, last;
  std::vector<std::int32_t> positions, own, starts = {0};
  std::int64_t longest = 0;
  const auto add = [&](std::span<const std::int64_t> sequence, std::int64_t slot) {
    tokens.insert(tokens.end(), sequence.begin(), sequence.end());
    for (std::size_t i = 0; i < sequence.size(); ++i) {
      positions.push_back(static_cast<std::int32_t>(i));
      own.push_back(static_cast<std::int32_t>(slot));
    }
    starts.push_back(static_cast<std::int32_t>(tokens.size()));
    longest = std::max(longest, static_cast<std::int64_t>(sequence.size()));
  };
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    DSTRAIN_CHECK(!prompts[i].empty() && std::cmp_less_equal(prompts[i].size(), capacity_),
                  "a prompt is empty, or longer than the cache");
    add(prompts[i], slots[i]);
    last.push_back(static_cast<std::int64_t>(tokens.size()) - 1);
  }
  std::int64_t fill = padded_rows(static_cast<std::int64_t>(tokens.size()), device_.is_cuda()) -
                      static_cast<std::int64_t>(tokens.size());
  for (; fill > 0; fill -= capacity_)
    add(std::vector<std::int64_t>(static_cast<std::size_t>(std::min(fill, capacity_))), slots_);
  const StreamScope scope(stream_);
  Reading reading{.logits = {}, .choice = {}, .done = Event(device_)};
  reading.logits = forward({.tokens = on_device(tokens, at::kLong, device_).unsqueeze(0),
                            .sequences = {.starts = on_device(starts, at::kInt, device_),
                                          .longest = longest,
                                          .positions = on_device(positions, at::kInt, device_)},
                            .slots = on_device(own, at::kInt, device_),
                            .last = on_device(last, at::kLong, device_),
                            .whole = true});
  const at::Tensor choice =
      room_for_choice(reading.logits.size(0), at::TensorOptions().device(device_));
  ops::likely_class(reading.logits, tokens_of(choice), logarithms_of(choice));
  reading.choice =
      room_for_choice(choice.size(1), at::TensorOptions().pinned_memory(device_.is_cuda()));
  reading.choice.copy_(choice, /*non_blocking=*/true);
  reading.done.record(stream_);
  return reading;
}

Chosen CachedModel::finish(const Reading& reading) {
  reading.done.synchronize();
  return chosen_of(reading.choice);
}

void CachedModel::start(std::span<const std::int64_t> tokens,
                        std::span<const std::int32_t> positions) {
  DSTRAIN_CHECK(std::cmp_equal(tokens.size(), slots_) && std::cmp_equal(positions.size(), slots_),
                "a token and a position for each slot");
  DSTRAIN_CHECK(std::ranges::max(positions) < capacity_, "a position beyond the cache");
  DSTRAIN_CHECK(started_ - finished_ < kStepsOnWay, "too many steps on their way");
  const at::NoGradGuard no_gradients;
  const StreamScope scope(stream_);
  HostStep& host = host_steps_[started_++ % kStepsOnWay];
  if (std::ranges::any_of(tokens, [](std::int64_t token) { return token != kLikely; })) {
    std::ranges::copy(tokens, host.tokens.mutable_data_ptr<std::int64_t>());
    const at::Tensor given = host.tokens.to(device_, /*non_blocking=*/true);
    const at::Tensor likely = tokens_of(step_choice_);
    likely.copy_(at::where(given == kLikely, likely, given));
  }
  std::ranges::copy(positions, host.positions.mutable_data_ptr<std::int32_t>());
  step_.sequences.positions.copy_(host.positions, /*non_blocking=*/true);
  if (steps_before_graph_ != 0) {
    if (steps_before_graph_ > 0) --steps_before_graph_;
    forward_step();
  } else {
    if (!step_graph_.captured())
      step_graph_.capture(
          stream_, [this] { forward_step(); }, nullptr);
    step_graph_.replay(stream_);
  }
  host.choice.copy_(step_choice_, /*non_blocking=*/true);
  host.done.record(stream_);
}

void CachedModel::forward_step() {
  step_logits_ = forward(step_);
  ops::likely_class(step_logits_, tokens_of(step_choice_), logarithms_of(step_choice_));
}

Chosen CachedModel::finish() {
  DSTRAIN_CHECK(finished_ < started_, "no step is on its way");
  const HostStep& host = host_steps_[finished_++ % kStepsOnWay];
  host.done.synchronize();
  return chosen_of(host.choice);
}

}  // namespace dstrain
