#pragma once

#include <string>
#include <vector>

#include "engine/program/cost.h"

namespace dstrain {

/// One or more neighbouring blocks of equal cost, for one micro-batch.
struct FlopsRow {
  std::string name;  ///< "layer.0 .. layer.31"
  int blocks = 1;
  // Of one block.
  std::int64_t parameters = 0;  ///< a group that several blocks read counts in the first
  std::int64_t trained = 0;     ///< of those
  Flops macs = 0;               ///< multiply-adds of forward
  Flops forward = 0;            ///< 2 each
  Flops backward = 0;           ///< twice forward
  double share = 0;             ///< of all blocks' forward, these together, 0 to 1
  Bytes saved = 0;              ///< kept from forward to backward, with what it hands on
};

[[nodiscard]] std::vector<FlopsRow> flops_rows(const ModelCost& cost);

/// `samples`: of the micro-batch.
[[nodiscard]] std::string flops_text(const std::vector<FlopsRow>& rows, int samples);
[[nodiscard]] std::string flops_json(const std::vector<FlopsRow>& rows, int samples);

}  // namespace dstrain
