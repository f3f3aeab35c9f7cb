#pragma once

#include <ATen/core/Tensor.h>

#include "engine/kernels/wire/wire.h"
#include "engine/mesh/coded_group.h"

/// Shards of groups as the messages in which ZeRO-3 sends them: codes, and behind these what
/// travels as it is (CodedGroup). Wang et al. 2023 (ZeRO++), arXiv:2306.10209, sec. 3.1 (weights)
/// and 3.3 (gradients). Tensors are flat and dense, on one device; messages are uint8 and begin on
/// 16 bytes. On a GPU enqueued on the current stream.
namespace dstrain {

/// `values` [shard_size] (fp32, bf16 or fp16), which are shard `shard` of the group, as a message,
/// each code to the nearest. `plain`: the type of what travels as it is.
void encode_shard(const CodedGroup& group, int shard, const at::Tensor& values,
                  const at::Tensor& message, at::ScalarType plain);
/// The same of fp32 in int4 at random, where `place` is that of the group's first element.
void encode_shard_randomly(const CodedGroup& group, int shard, const at::Tensor& values,
                           const at::Tensor& message, wire::RandomPlace place);
/// The messages of all shards, in order, as `whole` [elements] in the type of its plain elements.
void decode_shards(const CodedGroup& group, const at::Tensor& messages, const at::Tensor& whole);
/// `sum` [shard_size] fp32 = the sum of the messages, which are all of shard `shard`, in their
/// order, in fp32. Messages hold nothing of use afterwards.
void sum_messages(const CodedGroup& group, int shard, const at::Tensor& messages,
                  const at::Tensor& sum);

}  // namespace dstrain
