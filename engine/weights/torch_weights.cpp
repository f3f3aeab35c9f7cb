#include "engine/weights/torch_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "engine/base/error.h"

namespace dstrain {
namespace {

bool has_tensors(const PickleValue& dict) {
  for (std::size_t i = 1; i < dict.items.size(); i += 2) {
    if (dict.items[i]->is(PickleValue::Kind::tensor)) return true;
  }
  return false;
}

const PickleValue* find_weights(const PickleValue& root) {
  if (!root.is(PickleValue::Kind::dict)) return nullptr;
  if (has_tensors(root)) return &root;
  constexpr std::array kKeys = {"state_dict", "model", "module"};
  for (const char* key : kKeys) {
    const PickleValue* inner = root.find(key);
    if (inner != nullptr && inner->is(PickleValue::Kind::dict) && has_tensors(*inner)) return inner;
  }
  return nullptr;
}

std::int64_t num_elements_of(const PickleTensor& tensor) {
  std::int64_t product = 1;
  for (const std::int64_t size : tensor.shape) product *= size;
  return product;
}

/// Elements of a tensor whose order in the file is another, such as a transposed one.
void gather(const std::vector<std::byte>& bytes, const PickleTensor& tensor, std::int64_t begin,
            std::span<float> out) {
  const auto width = static_cast<std::size_t>(dtype_width(tensor.dtype));
  std::vector<std::int64_t> index(tensor.shape.size());
  std::int64_t rest = begin, place = 0;
  for (std::size_t d = index.size(); d-- > 0;) {
    index[d] = rest % tensor.shape[d];
    rest /= tensor.shape[d];
    place += index[d] * tensor.strides[d];
  }
  for (float& value : out) {
    const auto at = static_cast<std::size_t>(place) * width;
    to_floats(tensor.dtype, std::span(bytes).subspan(at, width), {&value, 1});
    for (std::size_t d = index.size(); d-- > 0;) {
      place += tensor.strides[d];
      if (++index[d] < tensor.shape[d]) break;
      place -= index[d] * tensor.strides[d];
      index[d] = 0;
    }
  }
}

}  // namespace

void read_tensor(const TorchZip& zip, const PickleTensor& tensor, std::int64_t begin,
                 std::span<float> out) {
  const TorchZip::Place place = zip.storage(*tensor.storage);
  const auto width = static_cast<std::uint64_t>(dtype_width(tensor.dtype));
  const std::uint64_t first = place.offset + static_cast<std::uint64_t>(tensor.offset) * width;
  std::vector<std::byte> bytes;
  if (!tensor.contiguous()) {
    std::int64_t last = 0;
    for (std::size_t d = 0; d < tensor.shape.size(); ++d)
      last += (tensor.shape[d] - 1) * tensor.strides[d];
    bytes.resize((static_cast<std::uint64_t>(last) + 1) * width);
    zip.file()->read(first, bytes);
    gather(bytes, tensor, begin, out);
    return;
  }
  const std::uint64_t from = first + static_cast<std::uint64_t>(begin) * width;
  if (tensor.dtype == "F32") {
    zip.file()->read(from, std::as_writable_bytes(out));
    return;
  }
  bytes.resize(out.size() * width);
  zip.file()->read(from, bytes);
  to_floats(tensor.dtype, bytes, out);
}

TorchWeights::TorchWeights(const std::filesystem::path& path) : WeightFile(path), zip_(path) {
  const PickleValue* weights = find_weights(zip_.root());
  if (weights == nullptr) {
    throw Error(ErrorKind::data, fmt::format("{} holds no dict of tensors", path.string()),
                "save the model's state_dict() with torch.save");
  }
  for (std::size_t i = 0; i + 1 < weights->items.size(); i += 2) {
    const PickleValue &key = *weights->items[i], &value = *weights->items[i + 1];
    if (!key.is(PickleValue::Kind::text) || !value.is(PickleValue::Kind::tensor)) continue;
    const PickleTensor& tensor = *value.tensor;
    const TorchZip::Place place = zip_.storage(*tensor.storage);
    const auto width = static_cast<std::uint64_t>(dtype_width(tensor.dtype));
    const std::uint64_t begin = place.offset + static_cast<std::uint64_t>(tensor.offset) * width;
    const std::uint64_t bytes = static_cast<std::uint64_t>(num_elements_of(tensor)) * width;
    entries_[key.text] = {tensor.dtype, tensor.shape, begin, begin + bytes};
    tensors_[key.text] = &tensor;
  }
}

void TorchWeights::read_values(const std::string& name, const Entry&, std::int64_t begin,
                               std::span<float> out) const {
  read_tensor(zip_, *tensors_.at(name), begin, out);
}

}  // namespace dstrain
