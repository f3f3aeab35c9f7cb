#pragma once

#include <ATen/core/Tensor.h>

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

/// One micro-batch on the host, before augmentation: of images or of text. `T` is the length of a
/// sample of text.
struct HostBatch {
  at::Tensor pixels;   ///< [B, H, W, C] uint8
  at::Tensor tokens;   ///< [B, T] int64
  at::Tensor labels;   ///< [B] int64; of text [B * T]: the token that follows
  at::Tensor weights;  ///< as `labels`, fp32: 1 where the label counts; 0 for all of a sample that
                       ///< only fills up the batch
  at::Tensor
      samples;  ///< [B] int64, index in the data set; -1 for a filler. Keys the augmentation.
  /// Of packed text: positions [B * T] int32, place of each row in its sequence; starts [S + 1]
  /// int32, first row of each sequence, ascending, filled up with B * T to a size that is the same
  /// for all batches.
  at::Tensor positions, starts;
  std::int64_t longest = 0;  ///< tokens of the longest sequence that `starts` can name
  /// Of a rank that has a part of each sample (own_rows.h): [M] int32, place of each of its rows
  /// among all B * T, and in its sequence.
  at::Tensor own_rows, own_positions;
  std::int64_t epoch = 0;
};

/// Samples by index. Thread-safe: several loader threads read at once.
class Dataset {
 public:
  virtual ~Dataset() = default;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// Labels that count in a sample: 1 of an image, the labelled tokens of a sample of text.
  [[nodiscard]] virtual std::int64_t targets(std::int64_t index) const = 0;
  /// A batch of `rows` samples, unfilled; pinned when asked.
  [[nodiscard]] virtual HostBatch allocate(std::int64_t rows, bool pinned) const = 0;
  /// Row `row` of `batch` from sample `index`; -1: a filler (zeros of weight 0). Rows of one batch
  /// are filled by several threads. Error{data} names file and record.
  virtual void fill(HostBatch& batch, std::int64_t row, std::int64_t index) const = 0;
  /// Called once all rows are filled, by one thread.
  virtual void finish(HostBatch&) const {}
};

/// Labelled images.
class ImageDataset : public Dataset {
 public:
  [[nodiscard]] virtual int classes() const = 0;
  [[nodiscard]] virtual ImageShape shape() const = 0;
  /// Pixels [height, width, channels] uint8 into `pixels`; returns the label. Error{data} names
  /// file and record.
  [[nodiscard]] virtual int read(std::int64_t index, std::span<std::uint8_t> pixels) const = 0;

  [[nodiscard]] std::int64_t targets(std::int64_t) const final { return 1; }
  [[nodiscard]] HostBatch allocate(std::int64_t rows, bool pinned) const final;
  void fill(HostBatch& batch, std::int64_t row, std::int64_t index) const final;
};

/// A row of text to be filled; each span is as long as a sample.
struct TextRow {
  std::span<std::int64_t> tokens, labels;
  std::span<float> weights;
  std::span<std::int32_t> positions;  ///< empty without packing
};

/// Tokenised text of fixed length.
class TextDataset : public Dataset {
 public:
  [[nodiscard]] virtual int sequence() const = 0;    ///< tokens of a sample
  [[nodiscard]] virtual int vocab_size() const = 0;  ///< above every token
  /// Most sequences packed into one sample; 0 without packing.
  [[nodiscard]] virtual int most_packed() const = 0;
  /// Fills the row; the places at which packed sequences begin go into `starts`. Error{data} names
  /// file and record.
  virtual void read(std::int64_t index, const TextRow& row,
                    std::vector<std::int32_t>& starts) const = 0;

  [[nodiscard]] HostBatch allocate(std::int64_t rows, bool pinned) const final;
  void fill(HostBatch& batch, std::int64_t row, std::int64_t index) const final;
  void finish(HostBatch& batch) const final;
};

/// Opens the split that `data` names. `image_size` is what the model takes: files are decoded
/// and made square as data.resize says (256 for 224, so that the random crop has room); fixed-size
/// sets ignore it.
[[nodiscard]] std::unique_ptr<ImageDataset> open_images(const DataConfig& data, Split split,
                                                        int image_size, std::int64_t seed);

/// Shape of the stored images; none of text.
[[nodiscard]] ImageShape stored_shape(const DataConfig& data, int image_size);

/// Classes and stored image shape without reading samples (what `plan` needs; also when the files
/// are absent).
struct DatasetFacts {
  int classes = 0;              ///< 0: only the files can say
  ImageShape shape = {};        ///< of stored images; channels always right
  std::int64_t train_size = 0;  ///< 0: only the files can say
};
[[nodiscard]] DatasetFacts dataset_facts(const DataConfig& data, int image_size);

}  // namespace dstrain
