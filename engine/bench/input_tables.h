#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/recipe/recipe.h"
#include "engine/report/document.h"

namespace dstrain::bench {

/// How a recipe's training images get to the device with so many loader threads. Times are of one
/// image, in seconds; those of the loader are CPU time of one thread.
struct InputRate {
  int threads = 0;
  double loader_per_s = 0;  ///< images per second in whole batches on the host
  double images_per_s = 0;  ///< in whole batches on the device
  double read_s = 0;        ///< the stored bytes
  double disk_s = 0;        ///< what reading took beyond its CPU time
  double decode_s = 0;      ///< of the part that training needs
  double prepare_s = 0;     ///< resize, operations of data.augment, into the batch
  double copy_s = 0;        ///< of the training thread: copy to the device, normalisation
  double stored_bytes = 0;
  double decoded_bytes = 0;  ///< pixels of the part
  [[nodiscard]] double core_s() const { return read_s + decode_s + prepare_s; }
};

struct InputBench {
  std::string recipe = {};
  DataConfig data = {};
  std::string device = {};
  std::int64_t images = 0;            ///< of the training split
  int image_size = 0;                 ///< that the model takes, in pixels
  int cores = 0;                      ///< of this machine
  double model_rate = 0;              ///< images per second that the model trains; 0: not known
  std::vector<InputRate> rates = {};  ///< threads ascending; not empty
};

/// What limits the input, what would help, and how many cores the model needs.
[[nodiscard]] std::vector<std::string> input_sentences(const InputBench& bench);
/// images.md, and what the terminal shows.
[[nodiscard]] report::Document input_document(const InputBench& bench);
/// images.csv: a row for each number of threads; the keys of images.json's rows.
[[nodiscard]] std::string input_csv(const InputBench& bench);
[[nodiscard]] nlohmann::ordered_json input_json(const InputBench& bench);

}  // namespace dstrain::bench
