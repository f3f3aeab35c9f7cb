#include <ATen/ops/empty.h>

#include "engine/kernels/wire/wire.h"
#include "engine/program/work.h"
#include "test/gpu/bench.h"

/// Coded blocks at the size of a large group; hidden, run with `test_gpu "[.bench]"`.
namespace dstrain {
namespace {

using namespace test;

constexpr std::int64_t kElements = std::int64_t{128} * 7'812'500;  // 1e9

double bytes_for(CodeFormat format) { return static_cast<double>(coded_bytes(format, kElements)); }

/// Codes that some numbers have.
at::Tensor coded_parts(CodeFormat format, std::int64_t parts) {
  const at::Tensor coded = at::empty({parts, coded_bytes(format, kElements)}, on_gpu(at::kByte));
  const at::Tensor x = random32({1, kElements});
  for (std::int64_t part = 0; part < parts; ++part)
    wire::quantize(x, coded.narrow(0, part, 1), format);
  return coded;
}

Case quantize_case(CodeFormat format, at::ScalarType type, bool randomly) {
  const double bytes =
      static_cast<double>(kElements) * static_cast<double>(c10::elementSize(type)) +
      bytes_for(format);
  return {std::string("quantize_blocks, ") + code_format_name(format) + (randomly ? " at random" : ""),
          c10::toString(type), bytes, [=]() -> Run {
            const at::Tensor x = random({1, kElements}, type),
                             coded =
                                 at::empty({1, coded_bytes(format, kElements)}, on_gpu(at::kByte));
            if (randomly) return [=] { wire::quantize_randomly(x, coded, {.seed = 1}); };
            return [=] { wire::quantize(x, coded, format); };
          }};
}

Case dequantize_case(CodeFormat format) {
  return {std::string("dequantize_blocks, ") + code_format_name(format), "to BFloat16",
          2.0 * static_cast<double>(kElements) + bytes_for(format), [=]() -> Run {
            const at::Tensor coded = coded_parts(format, 1), out = random({1, kElements});
            return [=] { wire::dequantize(coded, out, format); };
          }};
}

Case sum_case(CodeFormat format, std::int64_t parts, bool add) {
  return {std::string("sum_blocks, ") + code_format_name(format) + (add ? ", added" : ""),
          std::to_string(parts) + " parts",
          (add ? 8.0 : 4.0) * static_cast<double>(kElements) +
              static_cast<double>(parts) * bytes_for(format),
          [=]() -> Run {
            const at::Tensor coded = coded_parts(format, parts), out = random32({kElements});
            return [=] { wire::sum(coded, out, format, add); };
          }};
}

TEST_CASE("bench: coded blocks", "[.bench]") {
  print_head();
  std::vector<Case> cases;
  for (const CodeFormat format : {CodeFormat::int8, CodeFormat::fp8, CodeFormat::int4}) {
    cases.push_back(quantize_case(format, at::kBFloat16, false));
    cases.push_back(quantize_case(format, at::kFloat, false));
    cases.push_back(dequantize_case(format));
  }
  cases.push_back(quantize_case(CodeFormat::int4, at::kFloat, true));
  for (const bool add : {false, true}) {
    cases.push_back(sum_case(CodeFormat::int8, 2, add));
    cases.push_back(sum_case(CodeFormat::int4, 2, add));
    cases.push_back(sum_case(CodeFormat::int4, 4, add));
  }
  print_rows(cases, "1e9 elements,");
}

}  // namespace
}  // namespace dstrain
