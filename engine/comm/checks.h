#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "engine/comm/communicator.h"

/// What every backend asks of its arguments; a violation is our own fault and ends with
/// Error{internal}.
namespace dstrain::comm {

/// Contiguous, of a dtype that can be summed: fp32, fp64, bf16, fp16, int64, int32, int8, uint8.
void check_tensor(std::string_view operation, const at::Tensor& x);
/// `whole` holds `size` times `part`, with the same dtype and device.
void check_parts(std::string_view operation, const at::Tensor& whole, const at::Tensor& part,
                 int size);
/// The same number of elements, divisible by `size`, dtype and device.
void check_exchange(std::string_view operation, const at::Tensor& output, const at::Tensor& input,
                    int size);
/// Matrices of one width, dtype and device, with the rows that `rows` says for `size` ranks.
void check_exchanged_rows(std::string_view operation, const at::Tensor& output,
                          const at::Tensor& input, const ExchangedRows& rows, int size);
/// An index in the group.
void check_rank(std::string_view operation, int index, int size);
/// Another rank's index in the group.
void check_peer(std::string_view operation, int peer, int rank, int size);

}  // namespace dstrain::comm
