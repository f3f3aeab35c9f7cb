#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"

namespace dstrain::test {

/// Calls every operation of `comm` with integer-valued tensors of `count` elements per rank,
/// in-place forms included, and throws std::runtime_error that names the first wrong result.
/// Collective; for threads, where Catch2's macros may not be used.
void check_operations(Communicator& comm, at::Device device, at::ScalarType dtype,
                      std::int64_t count);

/// 0, 1, ... size - 1.
std::vector<int> all_ranks(int size);

/// Throws std::runtime_error(text) unless `ok`; for threads.
void expect(bool ok, const std::string& text);

/// fp32 values of all magnitudes, a function of `seed` alone, so that another order of summation
/// changes the sum.
at::Tensor uneven(std::int64_t count, std::uint64_t seed);

}  // namespace dstrain::test
