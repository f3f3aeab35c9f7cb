#include "engine/kernels/nf4/nf4.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "engine/kernels/nf4/kernels.h"
#include "engine/weights/safetensors.h"
#include "test/support/catch.h"

/// Codes and values in 4 bits beside those of bitsandbytes 0.50.2 on a CPU, bit for bit
/// (test/golden/nf4/make.py).
namespace dstrain {
namespace {

class Golden {
 public:
  Golden() : file_("test/golden/nf4/codes.safetensors") {}

  [[nodiscard]] bool has(const std::string& name) const { return file_.entries().contains(name); }
  [[nodiscard]] std::vector<std::int64_t> shape(const std::string& name) const {
    return file_.entries().at(name).shape;
  }
  [[nodiscard]] std::vector<std::uint8_t> bytes(const std::string& name) const {
    const auto found = file_.bytes(file_.entries().at(name));
    std::vector<std::uint8_t> list(found.size());
    std::memcpy(list.data(), found.data(), found.size());
    return list;
  }
  [[nodiscard]] std::vector<float> floats(const std::string& name) const {
    std::vector<float> values(static_cast<std::size_t>(num_elements(shape(name))));
    file_.read(name, 0, values);
    return values;
  }

 private:
  SafetensorsFile file_;
};

TEST_CASE("codes and values in 4 bits are those of bitsandbytes", "[models][nf4]") {
  static const Golden golden;
  const std::string name = GENERATE("even", "wide", "nested", "zeros", "middles", "bf16");
  CAPTURE(name);
  const std::vector<std::int64_t> shape = golden.shape(name + ".weight");
  const Nf4Codes codes = nf4_codes(golden.floats(name + ".weight"));
  CHECK(codes.codes == golden.bytes(name + ".packed"));
  CHECK(codes.maxima == golden.floats(name + ".absmax"));
  const std::string twice = name + ".double";
  const float offset = golden.floats(twice + ".offset").front();
  // The mean of fp32 numbers has another last bit where they are summed in another order.
  CHECK(nf4_maxima(codes.maxima).offset == Approx(offset).epsilon(1e-6));
  const Nf4Maxima maxima = nf4_maxima(codes.maxima, offset);
  CHECK(maxima.codes == golden.bytes(twice + ".absmax"));
  CHECK(maxima.maxima == golden.floats(twice + ".nested_absmax"));

  for (const bool double_coded : {false, true}) {
    const std::string known = double_coded ? twice : name;
    const Nf4Storage storage = nf4_storage({{name, shape}}, double_coded);
    std::vector<std::uint8_t> stored(static_cast<std::size_t>(storage.bytes));
    store_nf4(storage, 0, codes, maxima, stored);
    kernels::DecodeNf4 decode{.stored = stored.data(),
                              .piece = storage.pieces.front(),
                              .double_coded = double_coded,
                              .out = nullptr,
                              .dtype = kernels::DType::f32};
    const auto elements = static_cast<std::size_t>(num_elements(shape));
    if (golden.has(known + ".decoded")) {
      std::vector<float> values(elements);
      decode.out = values.data();
      kernels::cpu::decode_nf4(decode);
      CHECK(values == golden.floats(known + ".decoded"));
    }
    if (golden.has(known + ".decoded_bf16")) {
      std::vector<std::uint8_t> values(elements * 2);
      decode.out = values.data();
      decode.dtype = kernels::DType::bf16;
      kernels::cpu::decode_nf4(decode);
      CHECK(values == golden.bytes(known + ".decoded_bf16"));
    }
  }
}

TEST_CASE("the values of codes of maxima are bitsandbytes'", "[models][nf4]") {
  const Golden golden;
  const auto values = nf4_maxima_values();
  CHECK(std::vector<float>(values.begin(), values.end()) == golden.floats("dynamic_map"));
}

}  // namespace
}  // namespace dstrain
