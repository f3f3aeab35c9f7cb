#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "engine/base/error.h"
#include "engine/weights/pickle_array.h"
#include "engine/weights/pickle_listing.h"

/// Any bytes are either refused with Error{data} or give values that can be listed; tensors stay
/// inside their storages.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span program(reinterpret_cast<const std::byte*>(data), size);
  try {
    const dstrain::Pickle pickle(program, "fuzz");
    if (pickle.size() > size) std::abort();
    const dstrain::ListingLimits limits{.values = 1000};
    if (dstrain::listing(pickle.root(), limits).size() > limits.values + 1) std::abort();
    if (const auto array = dstrain::byte_array(pickle.root()); array && array->bytes.size() > size)
      std::abort();
    if (!pickle.root().is(dstrain::PickleValue::Kind::tensor)) return 0;
    const dstrain::PickleTensor& tensor = *pickle.root().tensor;
    std::int64_t last = tensor.offset;
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      if (tensor.shape[i] == 0) return 0;
      last += (tensor.shape[i] - 1) * tensor.strides[i];
    }
    if (last >= tensor.storage->elements) std::abort();
  } catch (const dstrain::Error& error) {
    if (error.kind() != dstrain::ErrorKind::data) std::abort();
  }
  return 0;
}
