#include "engine/train/execute/memory_errors.h"

#include <c10/util/Exception.h>

#include "engine/base/error.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

/// As LibTorch 2.11 writes it (c10/cuda/CUDACachingAllocator.cpp).
constexpr const char* kOfAllocator =
    "CUDA out of memory. Tried to allocate 18.38 GiB. GPU 3 has a total capacity of 79.11 GiB of "
    "which 11.52 GiB is free. Process 1234 has 67.58 GiB memory in use. Of the allocated memory "
    "66.50 GiB is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated. If "
    "reserved but unallocated memory is large try setting "
    "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for "
    "Memory Management  "
    "(https://docs.pytorch.org/docs/stable/notes/cuda.html#environment-variables)";

template <class Body>
std::pair<std::string, std::string> error_of(const Body& body) {
  try {
    with_memory_errors(body);
  } catch (const Error& error) {
    return {error.what(), error.hint()};
  }
  return {};
}

}  // namespace

TEST_CASE("a GPU without memory is one sentence with the figures", "[train]") {
  const auto [text, hint] =
      error_of([] { TORCH_CHECK_WITH(OutOfMemoryError, false, kOfAllocator); });
  CHECK(text == "CUDA out of memory: 18.38 GiB asked for, 11.52 GiB of 79.11 GiB free on GPU 3");
  CHECK(hint.find("lower batch.micro") == 0);
  CHECK(error_of([] { TORCH_CHECK_WITH(OutOfMemoryError, false, "of another version"); }).first ==
        "CUDA out of memory");
  CHECK(error_of([] {
          TORCH_CHECK(false,
                      "CUDA error: out of memory\nCUDA kernel errors might be reported later");
        }).first == "CUDA out of memory");
}

TEST_CASE("other errors of LibTorch pass", "[train]") {
  CHECK_THROWS_AS(with_memory_errors([] { TORCH_CHECK(false, "shapes differ"); }), c10::Error);
}

}  // namespace dstrain
