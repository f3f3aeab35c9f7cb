#include "engine/nn/low_rank.h"

#include <cmath>

#include "engine/base/stable_hash.h"

namespace dstrain {
namespace {

Parameter matrix(const std::string& name, const std::vector<std::int64_t>& shape, Range rows,
                 Range columns) {
  Parameter parameter;
  const bool cut = rows.size() < shape[0] || columns.size() < shape[1];
  parameter.hold({{name + ".weight", shape, rows, columns}});
  parameter.cut = cut ? Cut::tensor : Cut::none;
  parameter.hidden_matrix = true;
  return parameter;
}

}  // namespace

LowRank::LowRank(const std::string& prefix, const Piece& whole, std::int64_t first_output,
                 const LowRankOptions& options)
    : options_(options),
      first_output_(first_output),
      whole_columns_(whole.row_length()),
      first_column_(whole.columns.begin),
      name_hash_(stable_hash(prefix)),
      a_(matrix(prefix + ".lora_A", {options.rank, whole_columns_}, {0, options.rank},
                whole.columns)),
      b_(matrix(prefix + ".lora_B", {whole.shape[0], options.rank}, whole.rows,
                {0, options.rank})) {
  // Uniform within 1 / sqrt(columns), whose variance is a third of the bound's square.
  a_.init = Init::uniform;
  b_.lr_factor = options.lr_ratio;
  a_.init_std = 1 / std::sqrt(3.0 * static_cast<double>(whole_columns_));
}

ops::LowRankTerm LowRank::term(const Call& call) {
  // Two adapters of a micro-batch must not drop the same elements: hence the name.
  return {.a = &a_,
          .b = &b_,
          .scale = options_.scale,
          .column = first_output_,
          .mask = {.share = call.dropout_seed.defined() ? options_.dropout : 0,
                   .seed = call.dropout_seed,
                   .place = name_hash_,
                   .rows = call.own.rows,
                   .whole_columns = a_.cut == Cut::none ? 0 : whole_columns_,
                   .first_column = first_column_}};
}

}  // namespace dstrain
