#include "engine/nn/low_rank.h"

#include <cmath>

#include "engine/base/stable_hash.h"
#include "engine/kernels/ops.h"

namespace dstrain {
namespace {

Parameter matrix(const std::string& name, std::int64_t rows, std::int64_t columns) {
  Parameter parameter;
  parameter.hold({{name + ".weight", {rows, columns}}});
  parameter.hidden_matrix = true;
  return parameter;
}

}  // namespace

LowRank::LowRank(const std::string& prefix, std::int64_t columns, std::int64_t rows,
                 std::int64_t first_output, const LowRankOptions& options)
    : options_(options),
      first_output_(first_output),
      name_hash_(stable_hash(prefix)),
      a_(matrix(prefix + ".lora_A", options.rank, columns)),
      b_(matrix(prefix + ".lora_B", rows, options.rank)) {
  // Uniform within 1 / sqrt(columns), whose variance is a third of the bound's square.
  a_.init = Init::uniform;
  a_.init_std = 1 / std::sqrt(3.0 * static_cast<double>(columns));
}

at::Tensor LowRank::add_to(const at::Tensor& y_MN, const at::Tensor& x_MK, const Call& call) {
  // Two adapters of a micro-batch must not drop the same elements: hence the name.
  return ops::add_low_rank(y_MN, x_MK, a_, b_, options_.scale, first_output_,
                           {.share = call.dropout_seed.defined() ? options_.dropout : 0,
                            .seed = call.dropout_seed,
                            .place = name_hash_,
                            .rows = call.own.rows});
}

}  // namespace dstrain
