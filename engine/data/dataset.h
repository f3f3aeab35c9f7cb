#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "recipes/schema/recipe.h"

namespace dstrain {

/// Size of the stored images of a data set; decoded images of other sizes are resized to it.
struct ImageShape {
  int height = 0;
  int width = 0;
  int channels = 3;
  [[nodiscard]] std::int64_t bytes() const { return std::int64_t{height} * width * channels; }
  bool operator==(const ImageShape&) const = default;
};

enum class Split { train, test };

/// Labelled images by index. Thread-safe: several loader threads read at once.
class Dataset {
 public:
  virtual ~Dataset() = default;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  [[nodiscard]] virtual int classes() const = 0;
  [[nodiscard]] virtual ImageShape shape() const = 0;
  /// Pixels [height, width, channels] uint8 into `pixels`; returns the label. Error{data} names
  /// file and record.
  [[nodiscard]] virtual int read(std::int64_t index, std::span<std::uint8_t> pixels) const = 0;
};

/// Opens the split that `data` names. `image_size` is what the model takes: image folders are
/// decoded with their shorter side at 8/7 of it (256 for 224) and cut square in the middle, so that
/// the random crop has room; fixed-size sets ignore it.
[[nodiscard]] std::unique_ptr<Dataset> open_dataset(const DataConfig& data, Split split,
                                                    int image_size, std::int64_t seed);

/// Classes and stored image shape without reading samples (what `plan` needs; also when the files
/// are absent).
struct DatasetFacts {
  int classes = 0;              ///< 0: only the files can say
  ImageShape shape;             ///< of stored images; channels always right
  std::int64_t train_size = 0;  ///< 0: only the files can say
};
[[nodiscard]] DatasetFacts dataset_facts(const DataConfig& data, int image_size);

}  // namespace dstrain
