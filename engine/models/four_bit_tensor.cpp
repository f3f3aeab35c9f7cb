#include "engine/models/four_bit_tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/index.h"
#include "engine/base/json.h"
#include "engine/kernels/nf4/nf4_math.h"

namespace dstrain {
namespace {

constexpr const char* kState = ".quant_state.bitsandbytes__";

float float_at(std::span<const std::byte> bytes, std::int64_t index) {
  float value = 0;  // files do not align tensors
  std::memcpy(&value, &bytes[to_index(index) * sizeof(float)], sizeof(float));
  return value;
}

std::vector<float> floats_of(std::span<const std::byte> bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

/// The bytes of tensor `name`; empty where it is not there, or in no safetensors file.
std::span<const std::byte> bytes_of(const WeightFolder& folder, const std::string& name) {
  const auto place = folder.find({name});
  if (!place) return {};
  const auto* const file = dynamic_cast<const SafetensorsFile*>(place->file);
  return file == nullptr ? std::span<const std::byte>() : file->bytes(place->entry());
}

template <class Value>
bool is(const nlohmann::json& json, const char* key, const Value& wanted) {
  const auto found = json.find(key);
  return found != json.end() && *found == wanted;
}

}  // namespace

bool FourBitTensor::is_one(const WeightFolder& folder, const WeightFolder::Place& place) {
  return folder.find({place.name + kState + "nf4", place.name + kState + "fp4"}).has_value();
}

std::optional<FourBitTensor> FourBitTensor::open(const WeightFolder& folder,
                                                 const WeightFolder::Place& place,
                                                 const Piece& part, Misfits& misfits) {
  const auto refuse = [&](const std::string& why) -> std::optional<FourBitTensor> {
    misfits.add(Misfits::Way::dtype, fmt::format("{}: tensor '{}' in 4 bits: {}",
                                                 place.file->path().string(), place.name, why));
    return std::nullopt;
  };
  const auto bytes = [&](const std::string& suffix) {
    return bytes_of(folder, place.name + suffix);
  };
  const std::string state_name = std::string(kState) + "nf4";
  const Bytes text = bytes(state_name);
  if (text.empty())
    return refuse("fp4, or in a file of torch.save; dstrain reads nf4 of safetensors");
  const auto* const characters = reinterpret_cast<const char*>(text.data());
  const nlohmann::json state = json_or_null({characters, text.size()});
  if (!state.is_object()) return refuse("its quant_state is no JSON object");
  if (!is(state, "quant_type", "nf4")) return refuse("quant_type is not nf4");
  if (!is(state, "blocksize", kNf4Block)) return refuse("blocksize is not 64");
  if (!is(state, "shape", part.shape))
    return refuse(fmt::format("its shape is {}, the model needs [{}]",
                              state.value("shape", nlohmann::json()).dump(),
                              fmt::join(part.shape, ", ")));
  const std::int64_t elements = num_elements(part.shape), blocks = elements / kNf4Block;
  if (elements % kNf4Block != 0) return refuse("it is no whole blocks");

  FourBitTensor tensor;
  const bool nested = state.contains("nested_blocksize");
  tensor.names_ = {place.name, place.name + state_name, place.name + ".absmax",
                   place.name + ".quant_map"};
  tensor.codes_ = bytes("");
  tensor.maxima_ = bytes(".absmax");
  if (std::cmp_not_equal(tensor.codes_.size(), elements / 2))
    return refuse(fmt::format("{} bytes of codes for {} elements", tensor.codes_.size(), elements));
  if (std::cmp_not_equal(tensor.maxima_.size(), blocks * (nested ? 1 : 4)))
    return refuse(fmt::format("{} bytes of absmax for {} blocks", tensor.maxima_.size(), blocks));
  if (!std::ranges::equal(floats_of(bytes(".quant_map")), kernels::kNf4Values))
    return refuse("quant_map is not that of nf4");
  if (nested) {
    const auto offset = state.find("nested_offset");
    if (!is(state, "nested_blocksize", kNf4Maxima)) return refuse("nested_blocksize is not 256");
    if (offset == state.end() || !offset->is_number()) return refuse("nested_offset is missing");
    tensor.nested_ = bytes(".nested_absmax");
    if (std::cmp_not_equal(tensor.nested_.size(), (blocks + kNf4Maxima - 1) / kNf4Maxima * 4))
      return refuse(
          fmt::format("{} bytes of nested_absmax for {} blocks", tensor.nested_.size(), blocks));
    if (!std::ranges::equal(floats_of(bytes(".nested_quant_map")), nf4_maxima_values()))
      return refuse("nested_quant_map is not bitsandbytes' dynamic map");
    tensor.offset_ = static_cast<float>(offset->get<double>());
    tensor.names_.push_back(place.name + ".nested_absmax");
    tensor.names_.push_back(place.name + ".nested_quant_map");
  }
  for (const float value : floats_of(nested ? tensor.nested_ : tensor.maxima_)) {
    if (!std::isfinite(value)) return refuse("a maximum is not finite");
  }
  return tensor;
}

float FourBitTensor::maximum(std::int64_t block) const {
  if (!offset_) return float_at(maxima_, block);
  return nf4_maximum(static_cast<std::uint8_t>(maxima_[to_index(block)]),
                     float_at(nested_, block / kNf4Maxima), *offset_);
}

void FourBitTensor::read(std::int64_t begin, std::span<float> out) const {
  float largest = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::int64_t element = begin + static_cast<std::int64_t>(i);
    if (i == 0 || element % kNf4Block == 0) largest = maximum(element / kNf4Block);
    const auto two = static_cast<std::uint8_t>(codes_[to_index(element / 2)]);
    out[i] = kernels::kNf4Values[element % 2 == 0 ? two >> 4 : two & 15] * largest;
  }
}

Nf4Tensor FourBitTensor::whole() const {
  const auto copy = [](Bytes bytes) {
    std::vector<std::uint8_t> list(bytes.size());
    std::memcpy(list.data(), bytes.data(), bytes.size());
    return list;
  };
  if (!offset_) return {.codes = {.codes = copy(codes_), .maxima = floats_of(maxima_)}};
  return {.codes = {.codes = copy(codes_), .maxima = {}},
          .maxima =
              Nf4Maxima{.codes = copy(maxima_), .maxima = floats_of(nested_), .offset = *offset_}};
}

}  // namespace dstrain
