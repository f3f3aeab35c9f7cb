#include <algorithm>
#include <array>
#include <bit>

#include "engine/program/program.h"

namespace dstrain {
namespace {

/// FNV-1a over 64-bit words with a final mix of each, so that neighbouring values differ in all
/// bits.
class Hash {
 public:
  void add(std::int64_t value) {
    state_ = (state_ ^ static_cast<std::uint64_t>(value)) * 0x100000001b3ULL;
    state_ ^= state_ >> 29;
  }
  void add(double value) { add(std::bit_cast<std::int64_t>(value)); }
  [[nodiscard]] std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325ULL;
};

/// Programs without other axes have hashed these under their places here.
constexpr std::array kNumbered = {CommAxis::shard,       CommAxis::data,     CommAxis::batch,
                                  CommAxis::tensor,      CommAxis::sequence, CommAxis::expert,
                                  CommAxis::pipeline,    CommAxis::world,    CommAxis::shard_inner,
                                  CommAxis::shard_outer, CommAxis::ends};

std::int64_t code_of(CommAxis axis) {
  const auto found = std::ranges::find(kNumbered, axis);
  if (found != kNumbered.end()) return found - kNumbered.begin();
  return static_cast<std::int64_t>(kNumbered.size()) + axis.axes().bits();
}

void add(Hash& hash, const Layout& layout) {
  hash.add(std::int64_t{layout.shard_degree});
  hash.add(std::int64_t{layout.replica_degree});
  if (const int inner = layout.expert_degree * layout.sequence_degree * layout.tensor_degree;
      inner > 1) {
    for (const int degree : {layout.expert_degree, layout.sequence_degree, layout.tensor_degree})
      hash.add(std::int64_t{degree});
  }
  if (layout.stages != Stages{}) {
    for (const auto* list : {&layout.stages.first_block, &layout.stages.rank}) {
      hash.add(static_cast<std::int64_t>(list->size()));
      for (const int entry : *list) hash.add(std::int64_t{entry});
    }
  }
  const StateWidths& w = layout.widths;
  for (const int width : {w.compute, w.gradient, w.master, w.moments, w.reduce_wire}) {
    hash.add(std::int64_t{width});
  }
  if (w.average > 0) hash.add(std::int64_t{w.average});
  if (layout.matrix_rule.iterations > 0) {
    hash.add(std::int64_t{layout.matrix_rule.iterations});
    hash.add(std::int64_t{layout.matrix_rule.moments});
    hash.add(std::int64_t{layout.matrix_rule.direction});
    for (const GroupLayout& group : layout.groups) hash.add(group.matrix_elements);
  }
  hash.add(static_cast<std::int64_t>(layout.groups.size()));
  for (const GroupLayout& group : layout.groups) {
    for (const Partition part : {group.parameters, group.gradients, group.states}) {
      hash.add(static_cast<std::int64_t>(part));
    }
    hash.add(std::int64_t{group.trainable});
  }
  if (layout.chunk > 0) {
    hash.add(layout.chunk);
    for (const GroupLayout& group : layout.groups) {
      hash.add(static_cast<std::int64_t>(group.parameter_place));
      hash.add(static_cast<std::int64_t>(group.state_place));
      hash.add(static_cast<std::int64_t>(group.update_method));
    }
  }
  if (layout.gather_format || layout.reduce_format || layout.second_degree > 1) {
    for (const auto& format : {layout.gather_format, layout.reduce_format})
      hash.add(format ? std::int64_t{1} + static_cast<std::int64_t>(*format) : std::int64_t{0});
    hash.add(std::int64_t{layout.second_degree});
    for (const GroupLayout& group : layout.groups) hash.add(group.coded_elements);
  }
  if (layout.widths.gradient < kFloatBytes) {
    for (const GroupLayout& group : layout.groups) hash.add(group.fp32_sums);
  }
  for (int g = 0; g < static_cast<int>(layout.groups.size()); ++g)
    if (layout.splits_sum(g)) hash.add(std::int64_t{g});
  for (const FlatGroup& flat : layout.flat) {
    hash.add(flat.padded());
    hash.add(static_cast<std::int64_t>(flat.num_tensors()));
    for (std::size_t t = 0; t < flat.num_tensors(); ++t) hash.add(flat.size(t));
  }
}

void add(Hash& hash, const Action& action) {
  for (const std::int64_t field :
       {static_cast<std::int64_t>(action.kind), std::int64_t{action.block},
        std::int64_t{action.group}, std::int64_t{action.micro_batch}, action.workspace,
        static_cast<std::int64_t>(action.comm.size())}) {
    hash.add(field);
  }
  if (action.part >= 0) hash.add(std::int64_t{action.part});
  for (const Comm& comm : action.comm) {
    for (const std::int64_t field :
         {static_cast<std::int64_t>(comm.op), code_of(comm.axis), std::int64_t{comm.width},
          comm.bytes, std::int64_t{comm.peer}}) {
      hash.add(field);
    }
  }
  for (const auto* ids :
       {&action.reads, &action.writes, &action.frees, &action.after, &action.after_previous}) {
    hash.add(static_cast<std::int64_t>(ids->size()));
    for (const int id : *ids) hash.add(std::int64_t{id});
  }
  hash.add(action.flops);
}

}  // namespace

std::uint64_t hash(const Program& program, const Layout& layout) {
  Hash hash;
  add(hash, layout);
  for (const std::int64_t field :
       {static_cast<std::int64_t>(program.kind), std::int64_t{program.micro_batches},
        std::int64_t{program.coordinate}, static_cast<std::int64_t>(program.actions.size()),
        static_cast<std::int64_t>(program.buffers.size())}) {
    hash.add(field);
  }
  for (const Buffer& buffer : program.buffers) {
    for (const std::int64_t field :
         {static_cast<std::int64_t>(buffer.role), std::int64_t{buffer.owner}, buffer.elements,
          std::int64_t{buffer.width}, static_cast<std::int64_t>(buffer.place)}) {
      hash.add(field);
    }
  }
  for (const Action& action : program.actions) add(hash, action);
  return hash.value();
}

std::uint64_t hash(const std::vector<Program>& line, const Layout& layout) {
  Hash all;
  for (const Program& program : line) all.add(static_cast<std::int64_t>(hash(program, layout)));
  return line.size() == 1 ? hash(line.front(), layout) : all.value();
}

}  // namespace dstrain
