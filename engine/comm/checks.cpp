#include "engine/comm/checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/base/error.h"

namespace dstrain::comm {
namespace {

bool summable(at::ScalarType dtype) {
  using enum at::ScalarType;
  return dtype == Float || dtype == Double || dtype == BFloat16 || dtype == Half || dtype == Long ||
         dtype == Int || dtype == Char || dtype == Byte;
}

void check_same_kind(std::string_view operation, const at::Tensor& a, const at::Tensor& b) {
  check_tensor(operation, a);
  check_tensor(operation, b);
  DSTRAIN_CHECK(a.scalar_type() == b.scalar_type(),
                fmt::format("{}: {} and {}", operation, c10::toString(a.scalar_type()),
                            c10::toString(b.scalar_type())));
  DSTRAIN_CHECK(a.device() == b.device(), fmt::format("{}: tensors on {} and {}", operation,
                                                      a.device().str(), b.device().str()));
}

}  // namespace

void check_tensor(std::string_view operation, const at::Tensor& x) {
  DSTRAIN_CHECK(x.defined() && x.is_contiguous(),
                fmt::format("{}: the tensor is not contiguous", operation));
  DSTRAIN_CHECK(summable(x.scalar_type()),
                fmt::format("{}: no support for {}", operation, c10::toString(x.scalar_type())));
}

void check_parts(std::string_view operation, const at::Tensor& whole, const at::Tensor& part,
                 int size) {
  check_same_kind(operation, whole, part);
  DSTRAIN_CHECK(whole.numel() == part.numel() * size,
                fmt::format("{}: {} elements are not {} times {}", operation, whole.numel(), size,
                            part.numel()));
}

void check_exchange(std::string_view operation, const at::Tensor& output, const at::Tensor& input,
                    int size) {
  check_same_kind(operation, output, input);
  DSTRAIN_CHECK(output.numel() == input.numel() && input.numel() % size == 0,
                fmt::format("{}: {} elements to {} elements in {} equal parts", operation,
                            input.numel(), output.numel(), size));
}

void check_exchanged_rows(std::string_view operation, const at::Tensor& output,
                          const at::Tensor& input, const ExchangedRows& rows, int size) {
  check_same_kind(operation, output, input);
  const auto holds = [&](const at::Tensor& x, const std::vector<std::int64_t>& parts) {
    return x.dim() == 2 && std::cmp_equal(parts.size(), size) &&
           std::ranges::none_of(parts, [](std::int64_t part) { return part < 0; }) &&
           std::accumulate(parts.begin(), parts.end(), std::int64_t{0}) == x.size(0);
  };
  DSTRAIN_CHECK(
      holds(input, rows.sent) && holds(output, rows.received) && input.size(1) == output.size(1),
      fmt::format("{}: matrices of {} and {} elements for {} ranks, in parts of {} and {} rows",
                  operation, input.numel(), output.numel(), size, fmt::join(rows.sent, ", "),
                  fmt::join(rows.received, ", ")));
}

void check_rank(std::string_view operation, int index, int size) {
  DSTRAIN_CHECK(index >= 0 && index < size,
                fmt::format("{}: index {} in a group of {}", operation, index, size));
}

void check_peer(std::string_view operation, int peer, int rank, int size) {
  check_rank(operation, peer, size);
  DSTRAIN_CHECK(peer != rank, fmt::format("{}: rank {} with itself", operation, rank));
}

}  // namespace dstrain::comm
