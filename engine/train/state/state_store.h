#pragma once

#include <ATen/core/Tensor.h>

#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/device/device.h"
#include "engine/kernels/parameter.h"
#include "engine/models/groups.h"
#include "engine/models/weights.h"
#include "engine/nn/block_state.h"
#include "engine/program/layout.h"
#include "engine/recipe/optimizers.h"
#include "engine/train/state/group_memory.h"

namespace dstrain {

struct StateOptions {
  c10::Device device{c10::kCPU};
  at::ScalarType compute = at::kFloat;
  bool narrow_states =
      false;  ///< moments in the compute dtype, no master weights beside the parameters
  bool split_weights = false;     ///< the parameters (bf16) are the upper halves of master weights
  bool narrow_gradients = false;  ///< in the compute dtype, which is bf16
  OptimizerName optimizer = OptimizerName::adamw;  ///< its row names the moments
  std::vector<double> first_moments = {};          ///< what each starts from; none given: 0
  bool average = false;     ///< of trained weights and of untrained tensors in fp32, kept in fp32
  Mesh mesh = Mesh(1, {});  ///< of the layout
  int rank = 0;
  /// For each untrained tensor, the pipeline coordinate that runs its block; empty: this one.
  std::vector<int> state_stages = {};
  /// Names of the whole model, where other ranks have tensors that this one does not know.
  std::set<std::string> tensors = {};
  std::string pci_bus = {};       ///< of the device
  std::string offload_path = {};  ///< directory of files
};

/// This rank's part of parameters, gradients, master weights and moments, per group, in one flat
/// buffer of each kind; and the untrained tensors of blocks, whole. Of a pipeline: of the groups
/// and blocks of its stage; all else is empty.
///
/// "Own" is what the rank updates: its shard when states are sharded, else the whole group. Where
/// parameters rest whole but states are sharded (ZeRO-1, 2), `own_parameters` is a view into
/// `resident_parameters`; with fp32 compute the own parameters are the master weights themselves.
class StateStore {
 public:
  StateStore(const Layout& layout, ParameterGroups groups, std::vector<BlockState*> block_states,
             const StateOptions& options);

  [[nodiscard]] std::size_t num_groups() const { return groups_.size(); }
  [[nodiscard]] const FlatGroup& flat(int group) const {
    return layout_.flat[static_cast<std::size_t>(group)];
  }

  /// Whole parameters of the group, padded; undefined where parameters are sharded or rest on the
  /// host.
  [[nodiscard]] at::Tensor resident_parameters(int group) const;
  /// What this rank updates; on the host where they rest there. Not of parameters in a file.
  [[nodiscard]] at::Tensor own_parameters(int group) const;
  /// What the rank updates beside its own parameters: fp32 weights, or their lower halves; where
  /// there are neither, the parameters. Not of what is in a file.
  [[nodiscard]] at::Tensor master(int group) const;
  /// `part` of the weights as they are updated, in fp32 or as they are; of halves a copy.
  [[nodiscard]] at::Tensor weights(int group, Range part) const;
  /// A view of what this rank updates, or what the file holds of it.
  [[nodiscard]] at::Tensor load_parameters(int group) const;
  /// `part` of a moment of the group, which lies in moment_range. Not of moments in a file.
  [[nodiscard]] at::Tensor moment(int group, int index, Range part) const;
  /// The part of own_range that has moment `index`.
  [[nodiscard]] Range moment_range(int group, int index) const;
  /// One state at rest: its memory, and where the own part begins in the group's part of it.
  struct Resting {
    const GroupMemory* memory = nullptr;
    std::int64_t begin = 0;
  };
  /// Master weights or their lower halves. Null where the parameters are the master weights.
  [[nodiscard]] Resting master_at_rest(int group) const;
  /// Moments of an element-wise rule: of all the rank updates.
  [[nodiscard]] Resting moment_at_rest(int group, int index) const;
  [[nodiscard]] Resting parameters_at_rest(int group) const;
  [[nodiscard]] int num_moments() const { return static_cast<int>(moments_.size()); }
  /// Average of what this rank updates, fp32.
  [[nodiscard]] at::Tensor average(int group) const;
  /// Moves the averages of untrained tensors by `share` towards them, unless `skip` [] is 1.
  void average_block_states(double share, const at::Tensor& skip);
  /// Puts averages in the place of own parameters and untrained tensors, for an evaluation. The
  /// gradients at rest, which nothing reads before the next step fills them, hold the parameters.
  void take_average();
  void give_back_average();
  /// Whole gradients, padded; undefined where gradients are sharded.
  [[nodiscard]] at::Tensor resident_gradient(int group) const;
  /// The same with the room behind it (GroupLayout::fp32_sums): what bind_empty_gradients takes.
  [[nodiscard]] at::Tensor collecting_gradient(int group) const;
  [[nodiscard]] at::ScalarType gradient_type() const { return gradient_.scalar_type(); }
  /// The part of the gradients that this rank updates with.
  [[nodiscard]] at::Tensor own_gradient(int group) const;
  /// The rank holds the group, and trains it.
  [[nodiscard]] bool trainable(int group) const { return holds(group) && kind(group).trainable; }
  /// The bytes of a tensor of the group are codes (Parameter::nf4), not numbers.
  [[nodiscard]] bool in_four_bits(int group, std::size_t tensor) const {
    return groups_[static_cast<std::size_t>(group)][tensor]->nf4.has_value();
  }
  [[nodiscard]] bool holds(int group) const { return layout_.holds(stage_, group); }

  /// Ranges of the flat group that one element-wise rule updates with one weight decay and
  /// learning rate, in order,
  /// without the padding at its end.
  struct UpdateRange {
    Range range;
    bool decay = true;
    double lr_factor = 1;
    OptimizerName rule = OptimizerName::adamw;
    [[nodiscard]] bool updates_as(const UpdateRange& other) const {
      return decay == other.decay && lr_factor == other.lr_factor && rule == other.rule;
    }
  };
  [[nodiscard]] const std::vector<UpdateRange>& update_ranges(int group) const {
    return update_ranges_[static_cast<std::size_t>(group)];
  }
  /// What is updated as a whole, in flat order, and is in none of update_ranges.
  struct Matrix {
    Range range;
    std::int64_t rows = 0, columns = 0;
    bool decay = true;
    double lr_factor = 1;
  };
  [[nodiscard]] const std::vector<Matrix>& matrices(int group) const {
    return matrices_[static_cast<std::size_t>(group)];
  }
  /// The part of the flat group that this rank updates, or holds of a frozen group.
  [[nodiscard]] Range own_range(int group) const;

  /// Points the group's Parameter::value into `flat`, which holds the whole padded group.
  void bind_values(int group, const at::Tensor& flat);
  /// The same for Parameter::gradient, which then holds nothing yet: vectors are zeroed here,
  /// matrices are left to the product that writes them first. `buffer` has
  /// Layout::whole_gradient_elements.
  void bind_empty_gradients(int group, const at::Tensor& buffer);
  /// Points Parameter::gradient into a buffer that bind_empty_gradients was given, where another is
  /// bound since: two micro-batches under way fill one each.
  void bind_gradients(int group, const at::Tensor& buffer);
  /// Zeroes what no operator has written, and rounds the sums of vectors in fp32 to their place in
  /// the flat group; before the group's gradient is read.
  void settle_gradients(int group);
  void unbind_values(int group);

  /// Draws or reads this rank's own part, and codes what rests in 4 bits; moments are where they
  /// start.
  void initialize(const WeightSource& source);
  /// Adds this rank's share of the master weights, of frozen parameters and of untrained tensors to
  /// whole tensors by file name; the shares of all ranks are each element once. Matrices in 4
  /// bits, which no step changes, are left out.
  void add_share(std::map<std::string, std::vector<float>>& weights) const;
  /// The boxes of master weights and moments that this rank writes, where replicas share the work,
  /// and on the first rank the untrained tensors. States on the device are copied at once; those on
  /// the host and in files only if all copies take at most `room` bytes, else the part is live and
  /// must not outlive this object.
  [[nodiscard]] CheckpointPart snapshot(Bytes room = std::numeric_limits<Bytes>::max()) const;
  static constexpr std::int64_t kChunk = std::int64_t{1} << 25;  ///< elements, 128 MiB of fp32
  /// In chunks of at most that many elements.
  void restore(const CheckpointReader& reader, std::int64_t chunk = kChunk);
  /// The same, from the checkpoint that ended the phase before: weights and averages. Moments stay
  /// as they start, and so do weights that were frozen, which it leaves out.
  void begin_phase(const CheckpointReader& reader, std::int64_t chunk = kChunk);

 private:
  [[nodiscard]] const GroupLayout& kind(int group) const {
    return layout_.groups[static_cast<std::size_t>(group)];
  }
  void bind(int group, const at::Tensor& flat, at::Tensor Parameter::*member);
  /// The buffer's part in which the group's gradient collects: GroupLayout::fp32_sums elements.
  [[nodiscard]] at::Tensor fp32_sums(int group) const;
  void bind_block_states();
  [[nodiscard]] OptimizerName rule_of(const Parameter& parameter) const;
  /// States are numbered: master weights, moments, and the average where there is one.
  [[nodiscard]] int num_states() const { return 1 + num_moments() + (average_ ? 1 : 0); }
  [[nodiscard]] bool is_average(int state) const { return state == 1 + num_moments(); }
  /// The part of own_range that has the state.
  [[nodiscard]] Range state_range(int group, int state) const {
    return state == 0 || is_average(state) ? own_range(group) : moment_range(group, state - 1);
  }
  void require_own_tensors(const CheckpointReader& reader) const;
  /// Reads a state of all trained groups. Tensors that are not in `saved` (null: all are) keep what
  /// they have, or take the weights for the average.
  void read_state(const CheckpointReader& reader, const std::set<std::string>* saved, int state,
                  std::int64_t chunk);
  void read_block_states(const CheckpointReader& reader, bool averaged);
  /// `all_means`: the tensors of StateChange::step_mean, one after the other.
  void bind_block_averages(const at::Tensor& all_means);
  /// Averages begin as what they are averages of.
  void start_average();
  /// The state is weights in halves: the lower ones rest where at_rest says.
  [[nodiscard]] bool in_halves(int group, int state) const {
    return state == 0 && options_.split_weights && trainable(group);
  }
  /// `part` of a state; of halves a copy on the host.
  [[nodiscard]] at::Tensor load_state(int group, int state, Range part) const;
  /// `part` of what rests there.
  [[nodiscard]] at::Tensor load(const Resting& at, int group, Range part) const;
  void store(const Resting& at, int group, Range part, const at::Tensor& values);
  void store_state(int group, int state, Range part, const at::Tensor& values);
  /// Where state `state` rests.
  [[nodiscard]] Resting at_rest(int group, int state) const;
  /// In checkpoints.
  [[nodiscard]] std::string state_name(int state, const Parameter& parameter,
                                       const std::string& tensor) const;
  /// Calls `visit(box, offset)` for the boxes of a state's tensors that `range` of the group holds:
  /// `offset` is where a box begins in a buffer of the range.
  template <class Visit>
  void for_each_state_box(int group, int state, Range range, Visit visit) const;
  /// The part of the own range that this rank hands out, where holders share the work.
  [[nodiscard]] Range shared_part(int group) const;
  /// This rank's number among the holders of its part of the group.
  [[nodiscard]] int holder_index(int group) const;
  /// The part of the flat group that has the state.
  [[nodiscard]] Range whole_range(int group, int state) const;
  /// The layout of what snapshot() hands out of groups, and this rank's places in it.
  void describe_saved(CheckpointPart& part) const;
  /// This rank hands out untrained tensor `index`.
  [[nodiscard]] bool hands_out_state(std::size_t index) const;
  [[nodiscard]] bool holds_state(std::size_t index) const {
    return options_.state_stages.empty() || options_.state_stages[index] == stage_;
  }
  /// Calls `visit(group, state, range)` for what this rank writes of states.
  template <class Visit>
  void for_each_saved(Visit visit) const;
  [[nodiscard]] at::Tensor draw_flat(std::int64_t seed, int group, Range range) const;
  void read_flat(const WeightSource& source, int group, Range range, float* out) const;
  void initialize_coded(const WeightSource& source, int group);
  /// Fills the moments that start from another number than 0.
  void start_moments();
  /// Compute copy of the own part from the master weights.
  void refresh_own_parameters();

  Layout layout_;
  ParameterGroups groups_;
  std::vector<BlockState*> block_states_;
  StateOptions options_;
  int stage_;                                 ///< coordinate on the pipeline axis
  std::vector<std::int64_t> gradient_begin_;  ///< by group; of the trained ones
  /// A buffer that collects the gradients of a group, and while another is bound, what its
  /// parameters have of this one.
  struct Collected {
    at::Tensor buffer;
    std::vector<std::pair<at::Tensor, GradientState>> gradients = {};
  };
  void put_aside(int group);
  std::vector<std::vector<Collected>> collecting_;  ///< by group; the last one is bound
  std::vector<std::vector<UpdateRange>> update_ranges_;
  std::vector<std::vector<Matrix>> matrices_;
  GroupMemory parameters_;
  at::Tensor gradient_;
  /// Master weights or their lower halves; nothing when the parameters are the master.
  std::optional<GroupMemory> master_;
  std::vector<GroupMemory> moments_;
  std::optional<GroupMemory> average_;  ///< frozen groups have no part in these three
  /// Untrained numbers and their average; `kept`: the numbers while the average is in their place.
  struct AveragedState {
    at::Tensor value, average, kept = {};
  };
  std::vector<AveragedState> averaged_states_;  ///< those that change at once are one
  std::vector<at::Tensor> block_averages_;      ///< by untrained tensor; undefined: it has none
};

}  // namespace dstrain
