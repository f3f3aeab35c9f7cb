#include "engine/collectives/quantized.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <string>

#include "engine/base/error.h"

namespace dstrain {
namespace {

void check_flat(const std::string& what, const at::Tensor& tensor, std::int64_t elements,
                const at::Tensor& like) {
  DSTRAIN_CHECK(tensor.defined() && tensor.dim() == 1 && tensor.is_contiguous() &&
                    tensor.numel() == elements && tensor.device() == like.device(),
                fmt::format("{} is not flat and dense of {} elements", what, elements));
}

void check_group(const CodedGroup& group) {
  DSTRAIN_CHECK(group.shards >= 1 && group.elements >= 0 &&
                    group.elements % (group.shards * kFlatAlignment) == 0 && group.quantized >= 0 &&
                    group.quantized <= group.elements && group.quantized % kCodeBlock == 0,
                fmt::format("{} of {} elements cannot travel as codes over {} shards",
                            group.quantized, group.elements, group.shards));
}

/// Messages of equal length, one after another in scratch.
class Messages {
 public:
  /// `first`: message of the scratch to begin with.
  Messages(const CodedGroup& group, const at::Tensor& scratch, std::int64_t first,
           std::int64_t count, at::ScalarType plain_type)
      : group_(group), plain_type_(plain_type) {
    const auto width = static_cast<int>(c10::elementSize(plain_type));
    const std::int64_t bytes = group.message_bytes(width);
    DSTRAIN_CHECK(scratch.defined() && scratch.dim() == 1 && scratch.is_contiguous() &&
                      scratch.scalar_type() == at::kByte &&
                      scratch.numel() >= (first + count) * bytes,
                  fmt::format("coded messages need {} bytes of scratch", (first + count) * bytes));
    all_ = scratch.narrow(0, first * bytes, count * bytes).view({count, bytes});
  }

  [[nodiscard]] at::Tensor bytes() const { return all_.view({-1}); }
  [[nodiscard]] at::Tensor bytes_of(std::int64_t message) const { return all_[message]; }
  /// [messages, bytes]: the coded part of each.
  [[nodiscard]] at::Tensor coded() const {
    return all_.narrow(1, 0, coded_bytes(group_.format, group_.coded()));
  }
  /// The plain elements of `shard` in a message; may be empty.
  [[nodiscard]] at::Tensor plain(std::int64_t message, int shard) const {
    const std::int64_t begin = coded_bytes(group_.format, group_.coded());
    return all_[message]
        .narrow(0, begin, all_.size(1) - begin)
        .view(plain_type_)
        .narrow(0, 0, group_.plain_of(shard).size());
  }

 private:
  const CodedGroup& group_;
  at::ScalarType plain_type_;
  at::Tensor all_;
};

/// The elements of `shard` that travel as they are, in a tensor of that shard.
at::Tensor plain_of(const CodedGroup& group, const at::Tensor& shard_tensor, int shard) {
  const Range range = group.plain_of(shard);
  return shard_tensor.narrow(0, range.begin, range.size());
}

at::Tensor shard_of(const CodedGroup& group, const at::Tensor& whole, int shard) {
  return whole.narrow(0, shard * group.shard_size(), group.shard_size());
}

}  // namespace

void all_gather_quantized(Communicator& comm, const CodedGroup& group, const at::Tensor& own,
                          at::Tensor& whole, at::Tensor& scratch) {
  const c10::NoGradGuard no_grad;
  check_group(group);
  check_flat("the shard", own, group.shard_size(), whole);
  check_flat("the gathered group", whole, group.elements, own);
  DSTRAIN_CHECK(comm.size() == group.shards, "a quantised gather over another number of ranks");
  const int shard = comm.rank();
  if (group.quantized == 0) {
    at::Tensor part = shard_of(group, whole, shard);
    if (part.data_ptr() != own.data_ptr()) part.copy_(own);
    return comm.all_gather(whole, part);
  }
  const Messages messages(group, scratch, 0, group.shards, whole.scalar_type());
  wire::quantize(own.narrow(0, 0, group.coded()).unsqueeze(0), messages.coded().narrow(0, shard, 1),
                 group.format);
  messages.plain(shard, shard).copy_(plain_of(group, own, shard));
  at::Tensor all = messages.bytes();
  comm.all_gather(all, messages.bytes_of(shard));
  wire::dequantize(messages.coded(),
                   whole.view({group.shards, group.shard_size()}).narrow(1, 0, group.coded()),
                   group.format);
  for (int other = 0; other < group.shards; ++other) {
    if (group.plain_of(other).empty()) continue;  // most are
    plain_of(group, shard_of(group, whole, other), other).copy_(messages.plain(other, other));
  }
}

void reduce_scatter_quantized(const ReduceGroups& groups, const CodedGroup& group,
                              at::Tensor& whole, const ReducedShard& to,
                              const wire::RandomPlace& place, at::Tensor& scratch) {
  const c10::NoGradGuard no_grad;
  const int degree = groups.inner.size(), nodes = groups.outer.size();
  const int inner = groups.inner.rank(), node = groups.outer.rank();
  check_group(group);
  check_flat("the gradient", whole, group.elements, to.own);
  check_flat("the gradient's shard", to.own, group.shard_size(), whole);
  DSTRAIN_CHECK(whole.scalar_type() == at::kFloat && to.own.scalar_type() == at::kFloat,
                "gradients are reduced in fp32");
  DSTRAIN_CHECK(degree * nodes == group.shards,
                "a quantised reduction over another number of ranks");
  at::Tensor own = to.own;
  if (nodes == 1 && !to.add) return groups.inner.reduce_scatter(own, whole);

  // Inner rank i takes the shards of all that have its place: i, degree + i, ... Each lies in a run
  // of `degree` shards, so that the run is reduced in place and nothing has to be sorted.
  if (degree > 1) {
    const std::int64_t run = degree * group.shard_size();
    for (int of = 0; of < nodes; ++of) {
      at::Tensor part = shard_of(group, whole, of * degree + inner);
      groups.inner.reduce_scatter(part, whole.narrow(0, of * run, run));
    }
  }
  const int shard = node * degree + inner;
  if (nodes == 1) {
    own.add_(shard_of(group, whole, shard));
    return;
  }

  const Messages sent(group, scratch, 0, nodes, at::kFloat),
      received(group, scratch, nodes, nodes, at::kFloat);
  if (group.quantized > 0) {
    const at::Tensor partial = whole.view({nodes, degree * group.shard_size()})
                                   .narrow(1, inner * group.shard_size(), group.coded());
    if (group.format == CodeFormat::int4) {
      wire::RandomPlace here = place;
      here.node += node;
      here.first_element += inner * group.shard_size();
      wire::quantize_randomly(partial, sent.coded(), here);
    } else {
      wire::quantize(partial, sent.coded(), group.format);
    }
  }
  for (int of = 0; of < nodes; ++of) {
    const int target = of * degree + inner;
    if (group.plain_of(target).empty()) continue;
    sent.plain(of, target).copy_(plain_of(group, shard_of(group, whole, target), target));
  }
  at::Tensor to_bytes = received.bytes();
  groups.outer.all_to_all(to_bytes, sent.bytes());

  // The plain sum is made in scratch, as the sum of codes may run over its place in the shard.
  at::Tensor plain = received.plain(0, shard), own_plain = plain_of(group, own, shard);
  if (plain.numel() > 0) {
    for (int from = 1; from < nodes; ++from) plain.add_(received.plain(from, shard));
    if (to.add) plain.add_(own_plain);
  }
  if (group.quantized > 0)
    wire::sum(received.coded(), own.narrow(0, 0, group.coded()), group.format, to.add);
  if (plain.numel() > 0) own_plain.copy_(plain);
}

}  // namespace dstrain
