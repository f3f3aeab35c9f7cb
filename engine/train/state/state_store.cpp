#include "engine/train/state/state_store.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/side_by_side.h"
#include "engine/device/pinned.h"
#include "engine/device/stream.h"
#include "engine/kernels/optimizer/optimizer.h"
#include "engine/models/four_bits.h"
#include "engine/models/random_weights.h"
#include "engine/train/execute/host_copies.h"

namespace dstrain {
namespace {

/// Calls `visit(parameter, part, offset)` for every parameter that meets `range` of the flat group:
/// `part` is its elements there, counted from its own start, `offset` where they begin in a buffer
/// of the range.
template <class Visit>
void for_each_met(const std::vector<Parameter*>& parameters, const FlatGroup& flat, Range range,
                  Visit visit) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::int64_t begin = flat.offset(i);
    const Range met = intersect(range, {begin, begin + flat.size(i)});
    if (!met.empty())
      visit(*parameters[i], Range{met.begin - begin, met.end - begin}, met.begin - range.begin);
  }
}

bool has_average(const CheckpointReader& reader) {
  return std::ranges::any_of(reader.tensors(), [](const Piece& tensor) {
    return tensor.name.starts_with(average_name(""));
  });
}

}  // namespace

OptimizerName StateStore::rule_of(const Parameter& parameter) const {
  const OptimizerRow& row = optimizer_row(options_.optimizer);
  return parameter.hidden_matrix ? row.name : row.others.value_or(row.name);
}

std::string StateStore::state_name(int state, const Parameter& parameter,
                                   const std::string& tensor) const {
  if (state == 0) return tensor;
  if (is_average(state)) return average_name(tensor);
  const auto& moments = optimizer_row(rule_of(parameter)).moments;
  return fmt::format("optimizer.{}/{}", moments[to_index(state - 1)], tensor);
}

Range StateStore::whole_range(int group, int state) const {
  const OptimizerRow& row = optimizer_row(options_.optimizer);
  const bool moment = state > 0 && !is_average(state);
  const bool others_alone = moment && std::cmp_greater(state, row.moments.size());
  return {others_alone ? kind(group).matrix_elements : 0, flat(group).padded()};
}

Range StateStore::moment_range(int group, int index) const {
  const Range range = intersect(own_range(group), whole_range(group, index + 1));
  return range.empty() ? Range{} : range;
}

StateStore::StateStore(const Layout& layout, ParameterGroups groups,
                       std::vector<BlockState*> block_states, const StateOptions& options)
    : layout_(layout),
      groups_(std::move(groups)),
      block_states_(std::move(block_states)),
      options_(options),
      stage_(options.mesh.coordinate(options.rank, Axis::pipeline)),
      parameters_("parameters", options.compute,
                  {options.device, options.pci_bus, options.offload_path}) {
  DSTRAIN_CHECK(layout_.groups.size() == groups_.size() && layout_.flat.size() == groups_.size(),
                "layout and model differ in their number of groups");
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    std::vector<UpdateRange> ranges;
    std::vector<Matrix> matrices;
    for (std::size_t i = 0; i < groups_[g].size(); ++i) {
      const Parameter& parameter = *groups_[g][i];
      const Range range{layout_.flat[g].offset(i),
                        layout_.flat[g].offset(i) + layout_.flat[g].size(i)};
      const OptimizerName rule = rule_of(parameter);
      if (optimizer_row(rule).others) {
        std::int64_t begin = range.begin;
        for (const Piece& part : parameter.parts) {
          matrices.push_back({{begin, begin + part.numel()},
                              part.rows.size(),
                              part.columns.size(),
                              parameter.decay,
                              parameter.lr_factor});
          begin += part.numel();
        }
        continue;
      }
      const UpdateRange own{range, parameter.decay, parameter.lr_factor, rule};
      if (!ranges.empty() && ranges.back().updates_as(own)) {
        ranges.back().range.end = range.end;
      } else {
        ranges.push_back(own);
      }
    }
    update_ranges_.push_back(std::move(ranges));
    matrices_.push_back(std::move(matrices));
  }
  const HostPlaces places = {options_.device, options_.pci_bus, options_.offload_path};
  const at::ScalarType state_type = options_.narrow_states ? options_.compute : at::kFloat;
  DSTRAIN_CHECK(!options_.split_weights || options_.compute == at::kBFloat16,
                "upper halves of weights are bf16 parameters");
  if (options_.split_weights)
    master_.emplace("lower halves of master weights", at::kShort, places);
  else if (options_.compute != at::kFloat && !options_.narrow_states)
    master_.emplace("master weights", at::kFloat, places);
  const OptimizerRow& row = optimizer_row(options_.optimizer);
  const std::size_t others = row.others ? optimizer_row(*row.others).moments.size() : 0;
  for (std::size_t i = 0; i < std::max(row.moments.size(), others); ++i)
    moments_.emplace_back("moments", state_type, places);
  if (options.average) average_.emplace("average of the weights", at::kFloat, places);
  // Every group takes its place in the memory of each kind of state that it has.
  std::int64_t gradients = 0;
  const auto size = [&](int group, Partition partition) -> std::int64_t {
    if (!holds(group)) return 0;
    return partition == Partition::sharded ? flat(group).shard_size() : flat(group).padded();
  };
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    const GroupLayout& own = kind(g);
    parameters_.add(own.parameter_place, size(g, own.parameters));
    gradient_begin_.push_back(gradients);
    if (trainable(g))
      gradients += own.gradients == Partition::sharded ? flat(g).shard_size()
                                                       : layout_.whole_gradient_elements(g);
    if (master_) master_->add(own.state_place, trainable(g) ? size(g, own.states) : 0);
    for (int m = 0; m < num_moments(); ++m)
      moments_[to_index(m)].add(own.state_place, trainable(g) ? moment_range(g, m).size() : 0);
    if (average_) average_->add(Place::device, trainable(g) ? size(g, own.states) : 0);
  }
  const auto fp32 = at::TensorOptions().dtype(at::kFloat).device(options_.device);
  parameters_.allocate();
  collecting_.resize(groups_.size());
  gradient_ =
      at::zeros({gradients}, options_.narrow_gradients ? fp32.dtype(options_.compute) : fp32);
  if (master_) master_->allocate();
  for (GroupMemory& moment : moments_) moment.allocate();
  if (average_) average_->allocate();
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    if (const at::Tensor whole = resident_parameters(g); whole.defined()) bind_values(g, whole);
  }
  bind_block_states();
}

void StateStore::bind_block_states() {
  const auto fp32 = at::TensorOptions().dtype(at::kFloat).device(options_.device);
  std::int64_t means = 0;
  for (std::size_t s = 0; s < block_states_.size(); ++s) {
    const BlockState& state = *block_states_[s];
    if (holds_state(s) && state.change == StateChange::step_mean)
      means += num_elements(state.part.shape);
  }
  // What changes at once lies together, and the engine's counters are one number.
  const at::Tensor all_means = at::empty({means}, fp32);
  const at::Tensor steps = at::zeros({}, fp32.dtype(at::kLong));
  means = 0;
  for (std::size_t s = 0; s < block_states_.size(); ++s) {
    BlockState& state = *block_states_[s];
    if (!holds_state(s)) continue;
    if (state.change == StateChange::step_mean) {
      const std::int64_t count = num_elements(state.part.shape);
      state.value = all_means.narrow(0, means, count).view(state.part.shape);
      state.value.fill_(state.initial);
      means += count;
    } else if (state.change == StateChange::applied_steps) {
      state.value = steps;
    } else {
      state.value = at::full(state.part.shape, state.initial, fp32.dtype(state.type));
    }
  }
  block_averages_.resize(block_states_.size());
  if (average_) bind_block_averages(all_means);
}

void StateStore::bind(int group, const at::Tensor& whole, at::Tensor Parameter::*member) {
  const auto& parameters = groups_[to_index(group)];
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor own = whole.narrow(0, flat(group).offset(i), flat(group).size(i));
    parameters[i]->*member = parameters[i]->nf4 ? own : own.view(parameters[i]->shape);
  }
}

void StateStore::bind_values(int group, const at::Tensor& whole) {
  bind(group, whole, &Parameter::value);
}

void StateStore::unbind_values(int group) {
  for (Parameter* parameter : groups_[to_index(group)]) parameter->value.reset();
}

void StateStore::refresh_own_parameters() {
  if (!master_ || options_.split_weights) return;
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    if (!trainable(g)) continue;
    const auto [memory, begin] = parameters_at_rest(g);
    // In pieces: on the way to another place there is a copy in the other type.
    constexpr std::int64_t kPiece = std::int64_t{1} << 25;
    const std::int64_t count = own_range(g).size();
    for (std::int64_t done = 0; done < count; done += kPiece) {
      const Range piece{done, std::min(done + kPiece, count)};
      memory->store(g, moved(piece, begin), load_state(g, 0, moved(piece, own_range(g).begin)));
    }
  }
  synchronize(options_.device);
}

/// Elements [range) of the flat group `parameters` lies in, padding zero, by several threads.
void StateStore::read_flat(const WeightSource& source, int group, Range range, float* out) const {
  constexpr std::int64_t kPiece = 1 << 20;
  const auto pieces = static_cast<std::size_t>((range.size() + kPiece - 1) / kPiece);
  side_by_side(pieces, pieces, [&](std::size_t i) {
    const std::int64_t begin = range.begin + static_cast<std::int64_t>(i) * kPiece;
    const Range piece{begin, std::min(begin + kPiece, range.end)};
    const std::span values(out + (begin - range.begin), static_cast<std::size_t>(piece.size()));
    std::ranges::fill(values, 0.0F);
    for_each_met(groups_[to_index(group)], flat(group), piece,
                 [&](const Parameter& parameter, Range part, std::int64_t offset) {
                   source.read(parameter, part,
                               values.subspan(to_index(offset), to_index(part.size())));
                 });
  });
}

/// Elements [range) of the flat group, drawn on the GPU where the states rest.
at::Tensor StateStore::draw_flat(std::int64_t seed, int group, Range range) const {
  at::Tensor values = at::zeros({range.size()}, at::device(options_.device).dtype(at::kFloat));
  auto* stream = static_cast<cudaStream_t>(Stream::current(options_.device).handle());
  for_each_met(groups_[to_index(group)], flat(group), range,
               [&](const Parameter& parameter, Range part, std::int64_t offset) {
                 at::Tensor own = values.narrow(0, offset, part.size());
                 if (const auto value = same_value(parameter.init, parameter.init_std)) {
                   if (*value != 0) own.fill_(*value);
                   return;
                 }
                 for (const auto& [box, begin] : slices_of(parameter.parts, part)) {
                   draw_weights_on_gpu(seed, box, parameter.init, parameter.init_std,
                                       own.mutable_data_ptr<float>() + (begin - part.begin),
                                       stream);
                 }
               });
  return values;
}

/// On the host: matrices in 4 bits are made whole, one after the other.
void StateStore::initialize_coded(const WeightSource& source, int group) {
  const Range own = own_range(group);
  at::Tensor values = host_tensor({own.size()}, options_.compute, options_.device);
  values.zero_();
  auto* const bytes = static_cast<std::uint8_t*>(values.mutable_data_ptr());
  const auto width = static_cast<std::int64_t>(values.element_size());
  for_each_met(groups_[to_index(group)], flat(group), own,
               [&](const Parameter& parameter, Range part, std::int64_t offset) {
                 if (parameter.nf4) {
                   const std::vector<std::uint8_t> coded = coded_value(parameter, source);
                   const std::int64_t begin = part.begin * width;
                   const auto all = static_cast<std::int64_t>(coded.size());
                   const std::int64_t end = std::min(part.end * width, all);
                   if (begin < end)
                     std::copy_n(coded.data() + begin, end - begin, bytes + offset * width);
                   return;
                 }
                 std::vector<float> read(to_index(part.size()));
                 source.read(parameter, part, read);
                 values.narrow(0, offset, part.size())
                     .copy_(at::from_blob(read.data(), {part.size()}, at::kFloat));
               });
  store_state(group, 0, own, values);
  synchronize(options_.device);
}

void StateStore::initialize(const WeightSource& source) {
  const std::optional<std::int64_t> seed = source.seed();
  // Through two pinned buffers, so that reading goes on while the last chunk travels.
  std::array<at::Tensor, 2> buffers;
  std::array<Event, 2> copied = {Event(options_.device), Event(options_.device)};
  const Stream stream = Stream::current(options_.device);
  std::size_t turn = 0;
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    const Range own = own_range(g);
    const auto coded = [](const Parameter* parameter) { return parameter->nf4.has_value(); };
    if (std::ranges::any_of(groups_[to_index(g)], coded)) {
      initialize_coded(source, g);
      continue;
    }
    for (std::int64_t begin = own.begin; begin < own.end; begin += kChunk) {
      const Range chunk{begin, std::min(begin + kChunk, own.end)};
      if (seed && options_.device.is_cuda()) {
        store_state(g, 0, chunk, draw_flat(*seed, g, chunk));
        continue;
      }
      at::Tensor& buffer = buffers[turn % 2];
      if (!buffer.defined() || buffer.numel() < chunk.size())
        buffer = host_tensor({chunk.size()}, at::kFloat, options_.device);
      copied[turn % 2].synchronize();
      read_flat(source, g, chunk, buffer.mutable_data_ptr<float>());
      store_state(g, 0, chunk, buffer.narrow(0, 0, chunk.size()));
      copied[turn++ % 2].record(stream);
    }
  }
  for (std::size_t s = 0; s < block_states_.size(); ++s) {
    BlockState* state = block_states_[s];
    if (!holds_state(s) || state->type != at::kFloat) continue;
    const at::Tensor values = at::empty(state->part.shape, at::kFloat);
    const std::span out(values.mutable_data_ptr<float>(), static_cast<std::size_t>(values.numel()));
    if (source.read_state(*state, out)) state->value.copy_(values);
  }
  start_moments();
  start_average();
  synchronize(options_.device);
  refresh_own_parameters();
}

void StateStore::start_moments() {
  for (std::size_t m = 0; m < options_.first_moments.size(); ++m) {
    const double first = options_.first_moments[m];
    if (first == 0) continue;  // memory starts as zeros
    for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
      if (!trainable(g)) continue;
      const Range held = moment_range(g, static_cast<int>(m));
      for (std::int64_t begin = held.begin; begin < held.end; begin += kChunk) {
        const Range chunk{begin, std::min(begin + kChunk, held.end)};
        store_state(g, static_cast<int>(m) + 1, chunk, at::full({chunk.size()}, first, at::kFloat));
      }
    }
  }
}

template <class Visit>
void StateStore::for_each_state_box(int group, int state, Range range, Visit visit) const {
  for_each_met(groups_[to_index(group)], flat(group), range,
               [&](const Parameter& parameter, Range part, std::int64_t offset) {
                 if (parameter.nf4) return;  // no state of it is saved or handed out
                 for (auto& [box, place] : slices_of(parameter.parts, part)) {
                   box.name = state_name(state, parameter, box.name);
                   visit(std::move(box), offset + place - part.begin);
                 }
               });
}

Range StateStore::shared_part(int group) const {
  if (!holds(group)) return {};
  const Range own = own_range(group);
  return moved(even_part(own.size(), layout_.holders(group), holder_index(group)), own.begin);
}

int StateStore::holder_index(int group) const {
  const Axes along = layout_.holder_axes(group);
  const int index = options_.mesh.coordinate(options_.rank, layout_.in_mesh(along));
  return kind(group).stages.front() == stage_ ? index : index + layout_.degree(along);
}

bool StateStore::hands_out_state(std::size_t index) const {
  // The first rank of a stage.
  return holds_state(index) &&
         options_.rank % (options_.mesh.world_size() / layout_.pipeline_degree()) == 0;
}

void StateStore::add_share(std::map<std::string, std::vector<float>>& weights) const {
  synchronize(options_.device);
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    const Range share = shared_part(g);
    if (share.empty()) continue;
    const at::Tensor values = load_state(g, 0, share).to(at::kCPU, at::kFloat);
    for_each_state_box(g, 0, share, [&](const Piece& box, std::int64_t offset) {
      std::vector<float>& tensor = weights.at(box.name);
      const float* from = values.const_data_ptr<float>() + offset;
      for (std::int64_t done = 0; done < box.numel(); done += box.run_length())
        std::copy_n(from + done, box.run_length(), tensor.begin() + box.whole_index(done));
    });
  }
  for (std::size_t s = 0; s < block_states_.size(); ++s) {
    if (!hands_out_state(s)) continue;
    const at::Tensor values = block_states_[s]->value.to(at::kCPU, at::kFloat).contiguous();
    std::copy_n(values.const_data_ptr<float>(), values.numel(),
                weights.at(block_states_[s]->part.name).begin());
  }
}

template <class Visit>
void StateStore::for_each_saved(Visit visit) const {
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    if (!trainable(g)) continue;
    const Range all = shared_part(g);
    if (all.empty()) continue;
    for (int state = 0; state < num_states(); ++state) {
      const Range saved = intersect(all, state_range(g, state));
      if (!saved.empty()) visit(g, state, saved);
    }
  }
}

CheckpointPart StateStore::snapshot(Bytes room) const {
  synchronize(options_.device);  // updates go on beside the next step
  Bytes wanted = 0;
  for_each_saved([&](int, int, Range saved) { wanted += saved.size() * kFloatBytes; });
  CheckpointPart part;
  describe_saved(part);
  HostCopies copies(options_.device, options_.pci_bus);
  for_each_saved([&](int g, int state, Range saved) {
    // `read` gives elements of a range that is counted from the first that is saved.
    const auto add_boxes = [&](const auto& read) {
      for_each_state_box(g, state, saved, [&](Piece box, std::int64_t offset) {
        part.reads.emplace_back([read, offset](Range range, std::span<float> into) {
          read(moved(range, offset), into);
        });
        part.pieces.push_back(std::move(box));
      });
    };
    if (wanted > room && at_rest(g, state).memory->place(g) != Place::device) {
      part.live = true;
      return add_boxes([this, g, state, begin = saved.begin](Range range, std::span<float> into) {
        at::from_blob(into.data(), {range.size()}, at::kFloat)
            .copy_(load_state(g, state, moved(range, begin)));
      });
    }
    part.copied_values += saved.size();
    if (in_halves(g, state)) {
      const at::Tensor lower = copies.copy(load(at_rest(g, state), g, saved), at::kShort),
                       upper = copies.copy(load(parameters_at_rest(g), g, saved), at::kBFloat16);
      return add_boxes([lower, upper](Range range, std::span<float> into) {
        at::from_blob(into.data(), {range.size()}, at::kFloat)
            .copy_(optimizer::join(upper.narrow(0, range.begin, range.size()),
                                   lower.narrow(0, range.begin, range.size())));
      });
    }
    const at::Tensor copy = copies.copy(load_state(g, state, saved), at::kFloat);
    add_boxes([copy](Range range, std::span<float> into) {
      std::copy_n(copy.const_data_ptr<float>() + range.begin, range.size(), into.begin());
    });
  });
  for (std::size_t s = 0; s < block_states_.size(); ++s) {
    if (!hands_out_state(s)) continue;
    part.add(stored_part(*block_states_[s]), stored_values(*block_states_[s]));
    if (!block_averages_[s].defined()) continue;
    BlockState averaged = *block_states_[s];
    averaged.part.name = average_name(averaged.part.name);
    averaged.value = block_averages_[s];
    part.add(stored_part(averaged), stored_values(averaged));
  }
  copies.finish();
  return part;
}

void StateStore::require_own_tensors(const CheckpointReader& reader) const {
  std::set<std::string> known = options_.tensors;
  for (const auto& parameters : groups_) {
    for (const Parameter* parameter : parameters) {
      for (const Piece& part : parameter->parts) known.insert(part.name);
    }
  }
  for (const BlockState* state : block_states_) known.insert(state->part.name);
  // Moments of this optimizer, and of the rule for parameters that are no matrices.
  const OptimizerRow& row = optimizer_row(options_.optimizer);
  std::set<std::string> prefixes = {average_name("")};
  for (const OptimizerName rule : {row.name, row.others.value_or(row.name)}) {
    for (const auto& moment : optimizer_row(rule).moments)
      prefixes.insert(fmt::format("optimizer.{}/", moment));
  }
  for (const Piece& tensor : reader.tensors()) {
    const std::string prefix = tensor.name.substr(0, tensor.name.find('/') + 1);
    if (tensor.name.starts_with("optimizer.") && !prefixes.contains(prefix)) {
      throw Error(ErrorKind::checkpoint,
                  fmt::format("the checkpoint is of another optimizer: {} has no state '{}'",
                              row.spelling, tensor.name),
                  "resume with the optimizer of the run that saved it");
    }
    if (!tensor.name.starts_with("optimizer.") && !known.contains(tensor.name)) {
      throw Error(ErrorKind::checkpoint,
                  fmt::format("the checkpoint is of another model: this one has no tensor '{}'",
                              tensor.name),
                  "resume with the model of the run that saved it");
    }
  }
}

void StateStore::read_state(const CheckpointReader& reader, const std::set<std::string>* saved,
                            int state, std::int64_t chunk) {
  std::vector<float> values;
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    if (!trainable(g)) continue;
    const Range held = state_range(g, state);
    for (std::int64_t begin = held.begin; begin < held.end; begin += chunk) {
      const Range now{begin, std::min(begin + chunk, held.end)};
      values.assign(to_index(now.size()), 0.0F);
      if (saved != nullptr) {
        at::from_blob(values.data(), {now.size()}, at::kFloat)
            .copy_(load_state(g, is_average(state) ? 0 : state, now));
      }
      for_each_state_box(g, state, now, [&](const Piece& box, std::int64_t offset) {
        if (saved == nullptr || saved->contains(box.name))
          reader.read(box, std::span(values).subspan(to_index(offset), to_index(box.numel())));
      });
      store_state(g, state, now, at::from_blob(values.data(), {now.size()}, at::kFloat));
      synchronize(options_.device);
    }
  }
}

void StateStore::read_block_states(const CheckpointReader& reader, bool averaged) {
  std::vector<float> values;
  const auto read = [&](const BlockState& state, const Piece& stored, at::Tensor& into) {
    values.assign(to_index(stored.numel()), 0.0F);
    reader.read(stored, values);
    into.copy_(from_stored(state, values));
  };
  for (std::size_t s = 0; s < block_states_.size(); ++s) {
    if (!holds_state(s)) continue;
    BlockState& state = *block_states_[s];
    Piece stored = stored_part(state);
    read(state, stored, state.value);
    if (!averaged || !block_averages_[s].defined()) continue;
    stored.name = average_name(stored.name);
    read(state, stored, block_averages_[s]);
  }
}

void StateStore::restore(const CheckpointReader& reader, std::int64_t chunk) {
  require_own_tensors(reader);
  const bool averaged = average_ && has_average(reader);
  for (int state = 0; state < num_states(); ++state) {
    if (!is_average(state) || averaged) read_state(reader, nullptr, state, chunk);
  }
  read_block_states(reader, averaged);
  if (!averaged) start_average();  // the run that saved had none
  refresh_own_parameters();
}

}  // namespace dstrain
