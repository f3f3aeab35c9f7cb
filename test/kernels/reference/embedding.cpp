#include <limits>
#include <map>
#include <vector>

#include "engine/kernels/host_view.h"
#include "test/kernels/reference/reference.h"

/// Token embedding as its definition reads, in double.
namespace dstrain::kernels::reference {

void embed_tokens(const EmbedTokens& a) {
  const View table(a.table, a.dtype), out(a.out, a.dtype);
  for (std::int64_t row = 0; row < a.rows; ++row) {
    const std::int64_t token = a.tokens[row];
    const bool known = token >= 0 && token < a.vocab;
    for (std::int64_t i = 0; i < a.dim; ++i) {
      out.set(row * a.dim + i,
              known ? table.at(token * a.dim + i) : std::numeric_limits<double>::quiet_NaN());
    }
  }
}

void embed_tokens_backward(const EmbedTokensBackward& a) {
  const View grad_out(a.grad_out, a.dtype), table(a.grad_table, a.table);
  std::map<std::int64_t, std::vector<double>> sums;
  for (std::int64_t row = 0; row < a.rows; ++row) {
    const std::int64_t token = a.tokens[row];
    if (token < 0 || token >= a.vocab) continue;
    std::vector<double>& sum = sums[token];
    sum.resize(static_cast<std::size_t>(a.dim));
    for (std::int64_t i = 0; i < a.dim; ++i)
      sum[static_cast<std::size_t>(i)] += grad_out.at(row * a.dim + i);
  }
  for (const auto& [token, sum] : sums) {
    for (std::int64_t i = 0; i < a.dim; ++i)
      table.set(token * a.dim + i, table.at(token * a.dim + i) + sum[static_cast<std::size_t>(i)]);
  }
}

}  // namespace dstrain::kernels::reference
