#pragma once

#include <ATen/TensorOperators.h>

#include "engine/collectives/coded_messages.h"
#include "engine/comm/communicator.h"

/// Gathers and reductions in codes as the work of an action spells them (program/builder/operands).
namespace dstrain::test {

/// Shards of all ranks, this one's decoded like the others. `scratch`: gather_scratch_bytes().
inline void gather_coded(Communicator& comm, const CodedGroup& group, const at::Tensor& own,
                         at::Tensor& whole, const at::Tensor& scratch) {
  const std::int64_t bytes = group.message_bytes(static_cast<int>(whole.element_size()));
  const at::Tensor sent = scratch.narrow(0, comm.rank() * bytes, bytes);
  encode_shard(group, comm.rank(), own, sent, whole.scalar_type());
  at::Tensor received = scratch;
  comm.all_gather(received, sent);
  decode_shards(group, received, whole);
}

/// The sum of `whole` over all ranks to this one's shard `own`. `scratch`: reduce_scratch_bytes().
inline void reduce_coded(Communicator& inner, Communicator& outer, const CodedGroup& group,
                         const at::Tensor& whole, at::Tensor& own, wire::RandomPlace place,
                         const at::Tensor& scratch) {
  const int degree = inner.size(), nodes = outer.size();
  if (nodes == 1) return inner.reduce_scatter(own, whole);
  const std::int64_t run = degree * group.shard_size(), bytes = group.message_bytes(4);
  const auto part_of = [&](int node) {
    return whole.narrow(0, node * run + inner.rank() * group.shard_size(), group.shard_size());
  };
  for (int node = 0; node < nodes; ++node) {
    at::Tensor part = part_of(node);
    if (degree > 1) inner.reduce_scatter(part, whole.narrow(0, node * run, run));
  }
  place.node += outer.rank();
  for (int node = 0; node < nodes; ++node) {
    const int shard = node * degree + inner.rank();
    const at::Tensor message = scratch.narrow(0, node * bytes, bytes);
    if (group.format == CodeFormat::int4) {
      encode_shard_randomly(group, shard, part_of(node), message, place);
    } else {
      encode_shard(group, shard, part_of(node), message, at::kFloat);
    }
  }
  at::Tensor received = scratch.narrow(0, nodes * bytes, nodes * bytes);
  outer.all_to_all(received, scratch.narrow(0, 0, nodes * bytes));
  sum_messages(group, outer.rank() * degree + inner.rank(), received, own);
}

}  // namespace dstrain::test
