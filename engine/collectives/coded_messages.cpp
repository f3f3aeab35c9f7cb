#include "engine/collectives/coded_messages.h"

#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "engine/base/error.h"

namespace dstrain {
namespace {

void check_flat(const char* what, const at::Tensor& tensor, std::int64_t elements,
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

/// Messages of equal length, one after another.
class Messages {
 public:
  Messages(const CodedGroup& group, const at::Tensor& bytes, std::int64_t count,
           at::ScalarType plain)
      : group_(group), plain_type_(plain) {
    const std::int64_t size = group.message_bytes(static_cast<int>(c10::elementSize(plain)));
    DSTRAIN_CHECK(bytes.dim() == 1 && bytes.is_contiguous() && bytes.scalar_type() == at::kByte &&
                      bytes.numel() == count * size,
                  fmt::format("coded messages take {} bytes", count * size));
    all_ = bytes.view({count, size});
  }

  [[nodiscard]] std::int64_t count() const { return all_.size(0); }
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

void encode(const CodedGroup& group, int shard, const at::Tensor& values, const at::Tensor& message,
            at::ScalarType plain, const wire::RandomPlace* random) {
  const c10::NoGradGuard no_grad;
  check_group(group);
  check_flat("a shard", values, group.shard_size(), message);
  const Messages one(group, message, 1, plain);
  if (group.coded() > 0) {
    const at::Tensor x = values.narrow(0, 0, group.coded()).unsqueeze(0);
    random != nullptr ? wire::quantize_randomly(x, one.coded(), *random)
                      : wire::quantize(x, one.coded(), group.format);
  }
  if (!group.plain_of(shard).empty()) one.plain(0, shard).copy_(plain_of(group, values, shard));
}

}  // namespace

void encode_shard(const CodedGroup& group, int shard, const at::Tensor& values,
                  const at::Tensor& message, at::ScalarType plain) {
  encode(group, shard, values, message, plain, nullptr);
}

void encode_shard_randomly(const CodedGroup& group, int shard, const at::Tensor& values,
                           const at::Tensor& message, wire::RandomPlace place) {
  DSTRAIN_CHECK(group.format == CodeFormat::int4 && values.scalar_type() == at::kFloat,
                "fp32 is rounded to int4 at random, and nothing else");
  place.first_element += shard * group.shard_size();
  encode(group, shard, values, message, at::kFloat, &place);
}

void decode_shards(const CodedGroup& group, const at::Tensor& messages, const at::Tensor& whole) {
  const c10::NoGradGuard no_grad;
  check_group(group);
  check_flat("the gathered group", whole, group.elements, messages);
  const Messages all(group, messages, group.shards, whole.scalar_type());
  const at::Tensor shards = whole.view({group.shards, group.shard_size()});
  if (group.coded() > 0)
    wire::dequantize(all.coded(), shards.narrow(1, 0, group.coded()), group.format);
  for (int shard = 0; shard < group.shards; ++shard) {
    if (group.plain_of(shard).empty()) continue;  // most are
    plain_of(group, shards[shard], shard).copy_(all.plain(shard, shard));
  }
}

void sum_messages(const CodedGroup& group, int shard, const at::Tensor& messages,
                  const at::Tensor& sum) {
  const c10::NoGradGuard no_grad;
  check_group(group);
  check_flat("the gradient's shard", sum, group.shard_size(), messages);
  DSTRAIN_CHECK(sum.scalar_type() == at::kFloat, "gradients are summed in fp32");
  const std::int64_t size = group.message_bytes(static_cast<int>(c10::elementSize(at::kFloat)));
  const Messages all(group, messages, messages.numel() / size, at::kFloat);
  // The plain sum is made in the messages, as the sum of codes may run over its place.
  const at::Tensor plain = all.plain(0, shard);
  for (std::int64_t from = 1; from < all.count() && plain.numel() > 0; ++from)
    plain.add_(all.plain(from, shard));
  if (group.coded() > 0)
    wire::sum(all.coded(), sum.narrow(0, 0, group.coded()), group.format, /*add=*/false);
  if (plain.numel() > 0) plain_of(group, sum, shard).copy_(plain);
}

}  // namespace dstrain
