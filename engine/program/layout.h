#pragma once

#include <optional>
#include <vector>

#include "engine/base/units.h"
#include "engine/mesh/coded_group.h"
#include "engine/mesh/mesh.h"
#include "engine/mesh/shard.h"
#include "engine/program/comm.h"
#include "engine/program/cost.h"
#include "engine/program/stages.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// Who holds a kind of state of a parameter group.
enum class Partition {
  replicated,  ///< every rank, whole
  sharded,     ///< each rank along GroupLayout::cut, one shard
};

/// Where a kind of state rests.
using Place = OffloadPlace;
/// How a GPU comes to what rests in a place.
enum class Access {
  direct,  ///< reads and writes it itself
  copied,  ///< by a copy that the CPU makes in page-locked memory
  file,    ///< the same of what the CPU reads from a file
};
[[nodiscard]] Access access_of(Place place);
[[nodiscard]] const char* place_name(Place place);

/// What updates a group's states.
enum class UpdateMethod {
  device,    ///< all at once where they rest
  streamed,  ///< the device, part by part in a slot
  host,      ///< the CPU, part by part where they rest
};

struct GroupLayout {
  Partition parameters = Partition::replicated;  ///< compute-dtype parameters
  Partition gradients = Partition::replicated;
  Partition states = Partition::replicated;  ///< fp32 master and optimizer moments
  bool trainable = true;                     ///< false: parameters only
  Place parameter_place = Place::device;
  Place state_place = Place::device;  ///< of master weights and moments
  UpdateMethod update_method = UpdateMethod::device;
  std::int64_t matrix_elements = 0;  ///< at the front, updated as whole matrices
  /// Their update, on the rank that does the largest part. Workspace: the directions of all, and
  /// of one matrix two states of the iteration and two Gram matrices, or the result and its fp32
  /// copy.
  Flops matrix_flops = 0;
  Bytes matrix_workspace = 0;
  /// ZeRO divides what it shards among the ranks that differ on `cut`; equal shards lie along
  /// `copies`. Only axes with more than one rank.
  Axes cut = {};
  Axes copies = {};
  /// At the front, of matrices: travel as codes where something does.
  std::int64_t coded_elements = 0;
  /// At the end, of vectors and padding: where gradients are not fp32, theirs are summed in fp32 in
  /// room of their own behind the whole gradient. 0 where gradients are fp32.
  std::int64_t fp32_sums = 0;
  /// Coordinates of the pipeline whose blocks read it, ascending. Two where a table is tied over
  /// stages: each has it with its states, and its gradient is summed over both.
  std::vector<int> stages = {0};
  bool operator==(const GroupLayout&) const = default;
};

/// `ranks` of them, `stride` ranks apart where they are evenly spaced; they lie within `span`
/// neighbours.
struct CommExtent {
  int ranks = 1;
  int stride = 1;
  int span = 1;
};

/// Bytes per element of each kind of state.
struct StateWidths {
  int compute = 2;      ///< parameters as the kernels read them
  int gradient = 4;     ///< accumulated gradient: 4, or 2 of matrices
  int master = 4;       ///< 0: the parameters are the master; 2: its upper half, this the lower
  int moments = 8;      ///< all optimizer moments together
  int moment = 4;       ///< one of them
  int average = 0;      ///< average of the weights (EMA); 0: there is none
  int reduce_wire = 4;  ///< gradient on the wire
  /// An update reads the parameters, too: they are the master weights, or half of them.
  [[nodiscard]] bool parameters_are_states() const { return master < 4; }
};

/// An optimizer that updates whole matrices (Muon) beside the element-wise one.
struct MatrixRule {
  int iterations = 0;  ///< of Newton-Schulz; 0: there is none
  int moments = 0;     ///< bytes per element of a matrix, in the place of StateWidths::moments
  int direction = 2;   ///< of what is gathered and orthogonalised
};

/// Who holds which part of the training state, and in which width it rests and travels.
struct Layout {
  std::vector<GroupLayout> groups;
  std::vector<FlatGroup> flat;  ///< per group, in as many shards as its `cut` has ranks
  StateWidths widths;
  MatrixRule matrix_rule;
  Stages stages;           ///< which pipeline coordinate holds which blocks
  std::int64_t chunk = 0;  ///< elements of a part of offloaded states
  /// Those of the mesh; under ZeRO-0, which shares no state, ranks of its shard axis count as
  /// `data`.
  Degrees degrees = {};
  // ZeRO++ (Wang et al. 2023, arXiv:2306.10209).
  std::optional<CodeFormat> gather_format = {};  ///< of gathered parameters; none: as they are
  std::optional<CodeFormat> reduce_format = {};  ///< of gradients between inner groups
  int second_degree = 1;  ///< ranks that hold one more copy of the parameters: an inner group
  int peer_ranks = 1;     ///< neighbours whose devices write into each other's memory

  [[nodiscard]] int pipeline_degree() const { return stages.ranks(); }
  /// The coordinate of the pipeline has the group.
  [[nodiscard]] bool holds(int coordinate, int group) const;
  /// Ranks that see different samples.
  [[nodiscard]] int data_ranks() const { return degree(kDataAxes); }
  /// Ranks that differ on `axes` only.
  [[nodiscard]] int degree(Axes axes) const;
  [[nodiscard]] CommExtent extent(CommAxis axis) const;
  /// Shards of what is sharded of `group`.
  [[nodiscard]] int shards(int group) const;
  /// The axes along which ranks hold the same elements of the group's states, or of a frozen
  /// group's parameters; and how many such ranks there are, over all stages that have the group.
  [[nodiscard]] Axes holder_axes(int group) const;
  [[nodiscard]] int holders(int group) const;
  /// No rank has all parameters of `group` up to date after an update.
  [[nodiscard]] bool gathered(int group) const;
  /// Whole parameters of `group` live in a slot for a while, not in the group's own buffer.
  [[nodiscard]] bool gathered_into_slot(int group) const;
  /// The whole gradient of `group` lives in a slot until it is reduced.
  [[nodiscard]] bool reduced_from_slot(int group) const;
  /// Size of the buffer in which the group's whole gradient collects, with GroupLayout::fp32_sums.
  [[nodiscard]] std::int64_t whole_gradient_elements(int group) const;
  /// The gradient of `group` is summed over ranks.
  [[nodiscard]] bool reduced(int group) const;
  /// Each rank of `copies` sums its part of the group's gradient and gathers the others (an
  /// all-reduce as reduce-scatter and all-gather). Norm needs the own part only.
  [[nodiscard]] bool splits_sum(int group) const;
  /// Elements of the group's gradient whose squares this rank adds up, and how many ranks do so for
  /// the same elements.
  [[nodiscard]] std::int64_t summed_elements(int group) const;
  [[nodiscard]] int summing_ranks(int group) const;
  /// Something of the group's parameters or states rests on the host.
  [[nodiscard]] bool offloaded(int group) const;
  /// Elements of the group whose states this rank holds.
  [[nodiscard]] std::int64_t own_elements(int group) const;
  /// Offloaded states are updated in parts of `chunk` elements, the last one smaller; others in 1.
  [[nodiscard]] int parts(int group) const;
  /// Part of the elements whose states the rank holds.
  [[nodiscard]] Range part(int group, int index) const;
  /// Payload of the all-gather in the group's update, where matrices are divided into shards.
  [[nodiscard]] Bytes update_bytes(int group) const;

  /// The group's parameters travel as codes in a gather over the shard axis.
  [[nodiscard]] bool gathers_codes(int group) const;
  /// The group's gradient is reduced inside inner groups, then between them as codes.
  [[nodiscard]] bool reduces_codes(int group) const;
  /// The group as it travels.
  [[nodiscard]] CodedGroup coded(int group, CodeFormat format) const;
  /// Scratch of such a gather and of such a reduction.
  [[nodiscard]] Bytes gather_scratch(int group) const;
  [[nodiscard]] Bytes reduce_scratch(int group) const;
  /// What a rank holds of the group's second copy.
  [[nodiscard]] std::int64_t second_elements(int group) const;
  /// Those of the mesh that stand for `axes`: what does not shard counts its ranks as replicas.
  [[nodiscard]] Axes in_mesh(Axes axes) const;
  /// Global ranks of the group of `rank` along the axis, in their order. The layout is of `mesh`.
  [[nodiscard]] std::vector<int> ranks(CommAxis axis, const Mesh& mesh, int rank) const;
};

/// ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054, sec. 5): stage 0 replicates all, 1 shards
/// states, 2 also gradients, 3 also parameters. With a shard degree of 1 every stage is stage 0; in
/// stage 0 all data ranks are replicas, whichever of the two axes they lie on. What is sharded of a
/// group is divided among all ranks that hold the same of it by GroupCost::cut, but those of the
/// data axis. Error{usage} for another stage.
[[nodiscard]] Layout zero_layout(int zero_stage, const Mesh& mesh, const ModelCost& cost,
                                 const StateWidths& widths, const MatrixRule& matrix_rule = {});

/// Axes with several ranks along which ranks hold the same of weights that are cut so, and of whose
/// gradients therefore the sum.
[[nodiscard]] Axes equal_axes(const Layout& layout, Cut cut);

/// Cuts the blocks into `stages`. A group on two coordinates keeps its gradient whole. Error{usage}
/// where one of them would have no block.
void set_stages(Layout& layout, const ModelCost& cost, Stages stages);

/// What of a layout is ZeRO++.
struct Wires {
  std::optional<CodeFormat> gather = {};
  std::optional<CodeFormat> reduce = {};
  int second_degree = 1;
};
/// Sets it in a layout of `cost`. Without shards it has no effect. Error{usage} where the degree
/// does not divide the shard axis, or other axes than the data axes have more than one rank.
void set_wires(Layout& layout, const ModelCost& cost, const Wires& wires);

}  // namespace dstrain
