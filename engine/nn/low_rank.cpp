#include "engine/nn/low_rank.h"

#include <cmath>
#include <utility>

#include "engine/base/stable_hash.h"

namespace dstrain {
namespace {

Parameter matrix(std::vector<Piece> boxes) {
  Parameter parameter;
  const bool whole = boxes.front().numel() == num_elements(boxes.front().shape);
  parameter.hold(std::move(boxes));
  parameter.cut = whole ? Cut::none : Cut::tensor;
  parameter.hidden_matrix = true;
  return parameter;
}

/// The rows of b that belong to these boxes of the matrix.
std::vector<Piece> rows_of_b(const std::string& name, const std::vector<Piece>& boxes,
                             std::int64_t rank) {
  std::vector<Piece> rows;
  for (const Piece& box : boxes)
    rows.emplace_back(name, std::vector{box.shape[0], rank}, box.rows, Range{0, rank});
  return rows;
}

}  // namespace

LowRank::LowRank(const std::string& prefix, const std::vector<Piece>& boxes,
                 std::int64_t first_output, const LowRankOptions& options)
    : options_(options),
      first_output_(first_output),
      whole_columns_(boxes.front().row_length()),
      first_column_(boxes.front().columns.begin),
      name_hash_(stable_hash(prefix)),
      a_(matrix({{prefix + ".lora_A.weight",
                  {options.rank, whole_columns_},
                  {0, options.rank},
                  boxes.front().columns}})),
      b_(matrix(rows_of_b(prefix + ".lora_B.weight", boxes, options.rank))) {
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
