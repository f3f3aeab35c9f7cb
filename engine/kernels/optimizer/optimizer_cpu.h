#pragma once

#include <cstdint>

#include "engine/kernels/optimizer/kernels.h"
#include "engine/kernels/optimizer/optimizer_update.h"

/// The optimizer's loops for the CPU. Results do not depend on the number of threads; those of
/// `update` are, bit for bit, those of cuda::update.
namespace dstrain::kernels::cpu {

void add_squares(const AddSquares& args);

/// What the loops of an update are compiled for. `none`: any CPU, far slower where it has no FMA.
enum class VectorUnit { none, avx2, avx512 };
/// Whether this CPU has it.
[[nodiscard]] bool has(VectorUnit unit);

/// Elements [begin, end) of an update, on the calling thread alone; `begin` best a multiple of 128.
/// Results do not depend on how an update is cut into ranges, nor on the vector unit; the default
/// is the widest one there is.
void update_range(const OptimizerUpdate& args, std::int64_t begin, std::int64_t end);
void update_range(const OptimizerUpdate& args, std::int64_t begin, std::int64_t end,
                  VectorUnit unit);

/// All of it, divided among ATen's threads.
void update(const OptimizerUpdate& args);

/// update_range for one rule; in optimizer_scalar.cpp, optimizer_avx2.cpp and optimizer_avx512.cpp.
template <VectorUnit kUnit, class Rule>
void run_loop(const OptimizerUpdate& args, const typename Rule::Element& element,
              std::int64_t begin, std::int64_t end);

}  // namespace dstrain::kernels::cpu
