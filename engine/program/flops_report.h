#pragma once

#include <string>
#include <vector>

#include "engine/program/cost.h"

namespace dstrain {

/// What the work of one block took for a micro-batch, in seconds.
struct BlockTime {
  double forward_s = 0;
  double backward_s = 0;  ///< with what it recomputes
};

/// One or more neighbouring blocks of equal cost, for one micro-batch.
struct FlopsRow {
  std::string name;  ///< "layer.0 .. layer.31"
  int blocks = 1;
  // Figures of one block.
  std::int64_t parameters = 0;  ///< a group that several blocks read counts in the first
  std::int64_t trained = 0;     ///< of those
  Flops macs = 0;               ///< multiply-adds of forward
  Flops forward = 0;            ///< 2 each
  Flops backward = 0;           ///< twice forward
  double share = 0;             ///< of all blocks' forward, these together, 0 to 1
  Bytes saved = 0;              ///< kept from forward to backward, with what it hands on
  BlockTime time = {};          ///< mean of these blocks; 0: not measured
  /// Layers of one block in order, the last of them what the block hands on. They add up to the
  /// row; empty where the block does not tell its layers apart.
  std::vector<FlopsRow> layers = {};
};

/// `times`: measured, of each block; or empty.
[[nodiscard]] std::vector<FlopsRow> flops_rows(const ModelCost& cost,
                                               const std::vector<BlockTime>& times = {});

struct FlopsReport {
  std::vector<FlopsRow> rows = {};
  int samples = 0;          ///< of the micro-batch
  bool layers = false;      ///< are shown, too
  std::string device = {};  ///< that `time` was measured on; empty: nothing was measured
  double peak_flops = 0;    ///< of its datasheet, a second; 0: not known
};
[[nodiscard]] std::string flops_text(const FlopsReport& report);
[[nodiscard]] std::string flops_json(const FlopsReport& report);

}  // namespace dstrain
