#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/recipe/recipe.h"

namespace dstrain {

class DamagedFiles;
class ImageChoices;
class JpegUnits;
class Mixture;
struct DecodeRequest;
struct ImagePart;
struct ImageView;
struct SquareResize;
struct UnitImage;
class ProgressSink;

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
  at::Tensor pixels;   ///< [B, H, W, C] uint8; of clips of T frames [B * T, H, W, C]
  at::Tensor tokens;   ///< [B, T] int64
  at::Tensor labels;   ///< [B] int64; of text [B * T]: the token that follows
  at::Tensor weights;  ///< as `labels`, fp32: 1 where the label counts; 0 for all of a sample that
                       ///< only fills up the batch; of pairs -1 in rejected answers
  at::Tensor
      samples;  ///< [B] int64, index in the data set; -1 for a filler. Keys the augmentation.
  /// Packed text has positions [B * T] int32, place of each row in its sequence; starts [S + 1]
  /// int32, first row of each sequence, ascending, filled up with B * T to a size that is the same
  /// for all batches.
  at::Tensor positions, starts;
  at::Tensor lengths;  ///< of text, [B] int32: tokens of each sample without the padding
  /// [B, 2] fp32, of pairs: log-probability of the chosen and of the rejected answer in the
  /// reference, 0 where there is none.
  at::Tensor references;
  std::int64_t longest = 0;  ///< tokens of the longest sequence that `starts` can name
  /// A rank that has a part of each sample (own_rows.h): [M] int32, place of each of its rows
  /// among all B * T, and in its sequence.
  at::Tensor own_rows, own_positions;
  /// Images in training. Rectangles are left, top, width and height in the model's image; a
  /// width of 0 means none.
  at::Tensor erased;  ///< [B, 4] int32
  /// Sample r of v that are no fillers is mixed with sample v - 1 - r.
  at::Tensor mixed_shares;                 ///< [B] fp32, of the sample's own pixels
  at::Tensor mixed_windows;                ///< [B, 4] int32, pixels of the other one
  at::Tensor second_labels, label_shares;  ///< [B] int64 and fp32; the share is the first label's
  std::int64_t epoch = 0;
};

/// Samples by index. Thread-safe: several loader threads read at once.
class Dataset {
 public:
  virtual ~Dataset() = default;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// The order of its samples in training, where several data sets are mixed.
  [[nodiscard]] virtual const Mixture* mixture() const { return nullptr; }
  /// Labels that count in a sample: 1 of an image, the labelled tokens of a sample of text.
  [[nodiscard]] virtual std::int64_t targets(std::int64_t index) const = 0;
  /// A batch of `rows` samples, unfilled; pinned when asked.
  [[nodiscard]] virtual HostBatch allocate(std::int64_t rows, bool pinned) const = 0;
  /// Row `row` of `batch` from sample `index`; -1: a filler (zeros of weight 0). Rows of one batch
  /// are filled by several threads. Error{data} names file and record.
  virtual void fill(HostBatch& batch, std::int64_t row, std::int64_t index) const = 0;
  /// fill() for neighbouring rows from `row` on, which counts those that are filled.
  virtual void fill_rows(HostBatch& batch, std::int64_t& row,
                         std::span<const std::int64_t> indices) const;
  /// Called once all rows are filled, by one thread.
  virtual void finish(HostBatch&) const {}
};

/// What fill() does about an image that cannot be read.
enum class DamagedImage {
  stop,     ///< throws the error
  replace,  ///< the next image that can be read takes its place
  blank,    ///< zeros of weight 0
};

/// An image as it is stored.
struct StoredImage {
  std::string owned = {};       ///< the bytes, unless they are mapped
  std::string_view bytes = {};  ///< of `owned` or of the mapped file
  int label = 0;
};

/// Labelled images, or clips of several images.
class ImageDataset : public Dataset {
 public:
  ImageDataset();
  ~ImageDataset() override;

  [[nodiscard]] virtual int classes() const = 0;
  /// What the data calls them, in the order of their labels; none where it has no names.
  [[nodiscard]] virtual std::vector<std::string> class_names() const { return {}; }
  /// Shape of what read() makes.
  [[nodiscard]] virtual ImageShape shape() const = 0;
  /// Images of a sample, one after the other in its pixels.
  [[nodiscard]] virtual int frames() const { return 1; }
  /// Pixels [frames, height, width, channels] uint8 into `pixels`; returns the label. Error{data}
  /// names file and record.
  [[nodiscard]] virtual int read(std::int64_t index, std::span<std::uint8_t> pixels) const = 0;
  /// The label alone. A base class reads the pixels, too.
  [[nodiscard]] virtual int label(std::int64_t index) const;
  /// Hands `request.window` of each frame to `take`, decoded no larger than needed; returns the
  /// label. A base class decodes by read().
  [[nodiscard]] virtual int read_parts(
      std::int64_t index, const DecodeRequest& request,
      const std::function<void(int frame, const ImagePart& part, const ImageView& image)>& take)
      const;

  /// An image of a sample as a file's bytes. Nothing where a data set has none. Error{data} names
  /// file and record.
  [[nodiscard]] virtual std::optional<StoredImage> stored(std::int64_t, int) const { return {}; }
  /// How read() makes images of any size square; null where they have one size.
  [[nodiscard]] virtual const SquareResize* square() const { return nullptr; }

  /// Reads what is stored of a sample without decoding it; its bytes.
  [[nodiscard]] virtual std::int64_t stored_bytes(std::int64_t index) const;
  /// Decodes what fill() needs of a sample and drops it, for measurements; bytes of the pixels.
  std::int64_t decode_only(std::int64_t index, std::int64_t epoch) const;

  /// Random choices that fill() and finish() make from now on.
  void augment_with(const ImageChoices& choices);
  /// What fill() does from now on; without a call it throws.
  void handle_damaged(DamagedImage how);
  [[nodiscard]] DamagedImage damaged() const { return damaged_; }
  /// From now on these decode what they can of the rows that fill_rows() is given, and the CPU the
  /// others.
  void decode_by(std::shared_ptr<JpegUnits> units);
  [[nodiscard]] bool has_units() const { return units_ != nullptr; }
  /// Shape of each image in a batch.
  [[nodiscard]] ImageShape batch_shape() const;

  [[nodiscard]] std::int64_t targets(std::int64_t) const final { return 1; }
  [[nodiscard]] HostBatch allocate(std::int64_t rows, bool pinned) const final;
  void fill(HostBatch& batch, std::int64_t row, std::int64_t index) const final;
  void fill_rows(HostBatch& batch, std::int64_t& row,
                 std::span<const std::int64_t> indices) const final;
  void finish(HostBatch& batch) const final;

 private:
  /// Labels of the rows from `row` on whose pixels the units have put there, but for the operations
  /// of data.augment.
  [[nodiscard]] std::vector<std::optional<int>> decode_ahead(
      HostBatch& batch, std::int64_t row, std::span<const std::int64_t> indices) const;
  /// Adds a sample's images and the files that they name. False: the units do not take all of them.
  [[nodiscard]] bool add_images(std::int64_t index, std::int64_t epoch,
                                std::span<std::uint8_t> pixels, std::vector<StoredImage>& files,
                                std::vector<UnitImage>& images) const;
  /// fill(); `label`: the pixels are there.
  void fill_row(HostBatch& batch, std::int64_t row, std::int64_t index,
                std::optional<int> label) const;
  /// random_resized_crop is among the choices.
  [[nodiscard]] bool cuts_windows() const;
  /// What random_resized_crop takes of a sample.
  [[nodiscard]] DecodeRequest window_request(std::int64_t sample, std::int64_t epoch) const;
  [[nodiscard]] int draw(std::int64_t index, std::int64_t choices_of, std::int64_t epoch,
                         std::span<std::uint8_t> pixels) const;
  void operate(std::int64_t choices_of, std::int64_t epoch, std::span<std::uint8_t> pixels) const;

  std::unique_ptr<const ImageChoices> choices_;
  std::shared_ptr<JpegUnits> units_;
  DamagedImage damaged_ = DamagedImage::stop;
  std::unique_ptr<DamagedFiles> named_;
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
  [[nodiscard]] virtual int max_packed() const = 0;
  /// Whether a sample is a pair: the sequence of the chosen answer, then that of the rejected one.
  [[nodiscard]] virtual bool has_pairs() const { return false; }
  /// Tells pairs of files, in their order, from any others.
  [[nodiscard]] virtual std::string pairs_key() const { return {}; }
  /// What batches have as HostBatch::references from now on: two numbers a pair. No thread may read
  /// meanwhile.
  void take_references(std::vector<float> references);
  /// Fills the row and returns how many of its tokens are no padding; the places at which packed
  /// sequences begin go into `starts`. Error{data} names file and record.
  virtual std::int64_t read(std::int64_t index, const TextRow& row,
                            std::vector<std::int32_t>& starts) const = 0;

  [[nodiscard]] HostBatch allocate(std::int64_t rows, bool pinned) const final;
  void fill(HostBatch& batch, std::int64_t row, std::int64_t index) const final;
  void finish(HostBatch& batch) const final;

 private:
  std::vector<float> references_;
};

/// Opens the split that `data` names. `image_size` is what the model takes: files are decoded and
/// resized as data.resize says, training's to squares (256 for 224, so that the random crop has
/// room), evaluation's to the model's size; fixed-size sets ignore it. Training makes the random
/// choices of data.augment. With data.pack files come from the packed file, which is made first
/// where needed; `progress` (may be null) gets how far that is. data.subset takes so many of them.
/// A mixture is all of its members (mixed_sets.h).
[[nodiscard]] std::unique_ptr<ImageDataset> open_images(const DataConfig& data, Split split,
                                                        int image_size, std::int64_t seed,
                                                        ProgressSink* progress = nullptr);

/// Whether open_images() packs what data.path holds without data.pack, too: what is read in its
/// order alone.
[[nodiscard]] bool always_packed(const DataConfig& data);

/// Shape of the stored images, before a random crop; none of text.
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
