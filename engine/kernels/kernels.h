#pragma once

/// Every kernel: its arguments and the GPU version, and the reference in double where a CPU runs it;
/// the other references are in test/kernels/reference.
///
/// The rules, once: tensors are dense and row-major; a `void*` holds elements of `dtype`,
/// statistics and weight gradients are fp32; a `grad_*` of a parameter is added to, everything else
/// is overwritten. Sums run in fp32 in an order that depends on the shape only, so results are
/// bitwise repeatable. Launches are asynchronous on `stream`; nothing waits for the host. Pointers
/// are aligned to 16 bytes unless said otherwise. The reference takes the same arguments with host
/// pointers.

#include "engine/kernels/activation/kernels.h"
#include "engine/kernels/attention/kernels.h"
#include "engine/kernels/draw/kernels.h"
#include "engine/kernels/embedding/kernels.h"
#include "engine/kernels/experts/kernels.h"
#include "engine/kernels/linear/kernels.h"
#include "engine/kernels/loss/kernels.h"
#include "engine/kernels/norm/kernels.h"
#include "engine/kernels/optimizer/kernels.h"
#include "engine/kernels/wire/kernels.h"
