#include "engine/data/images/random_images.h"

#include <algorithm>
#include <cstring>

#include "engine/base/error.h"
#include "engine/base/philox.h"
#include "engine/data/formats.h"
#include "engine/data/images/image_choices.h"
#include "engine/recipe/datasets.h"

namespace dstrain::formats {
namespace {

/// Images are windows of one pool of noise, so that reading one costs a copy and measuring does not
/// measure the loader.
constexpr std::size_t kPoolBytes = std::size_t{4} << 20;
constexpr std::size_t kWindowStep = 64;
constexpr int kRandomClasses = 101, kRandomChannels = 3;

class RandomImages final : public ImageDataset {
 public:
  RandomImages(std::int64_t size, const ImageShape& shape, int classes, int frames,
               std::int64_t seed, Split split)
      : size_(size),
        shape_(shape),
        classes_(classes),
        frames_(frames),
        key_(random_key(static_cast<std::uint64_t>(seed), RandomStream::synthetic)),
        split_(split == Split::train ? 0 : 1),
        pool_(kPoolBytes + static_cast<std::size_t>(shape.bytes()) + sizeof(Philox)) {
    for (std::size_t at = 0; at + sizeof(Philox) <= pool_.size(); at += sizeof(Philox)) {
      const Philox noise = Philox::at(key_, kPoolCounter, at);
      std::memcpy(&pool_[at], noise.word, sizeof(noise.word));
    }
  }

  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] int classes() const override { return classes_; }
  [[nodiscard]] ImageShape shape() const override { return shape_; }
  [[nodiscard]] int frames() const override { return frames_; }
  [[nodiscard]] int read(std::int64_t index, std::span<std::uint8_t> pixels) const override {
    DSTRAIN_CHECK(index >= 0 && index < size_, "no such sample");
    const auto each = static_cast<std::size_t>(shape().bytes());
    DSTRAIN_CHECK(pixels.size() == each * static_cast<std::size_t>(frames_), "wrong pixel buffer");
    const Philox random = Philox::at(key_, split_, static_cast<std::uint64_t>(index));
    constexpr std::size_t kWindows = kPoolBytes / kWindowStep;
    std::size_t window = random.below(0, kWindows);
    for (std::size_t at = 0; at < pixels.size(); at += each) {
      std::memcpy(&pixels[at], &pool_[window * kWindowStep], each);
      window = (window + 1) % kWindows;
    }
    return static_cast<int>(random.below(1, static_cast<std::uint32_t>(classes_)));
  }

 private:
  static constexpr std::uint64_t kPoolCounter = 2;  // 0 and 1 are the splits

  std::int64_t size_;
  ImageShape shape_;
  int classes_, frames_;
  std::uint64_t key_;
  std::uint64_t split_;
  std::vector<std::uint8_t> pool_;
};

}  // namespace

std::int64_t random_size(const DataConfig& data, Split split) {
  return split == Split::train ? data.samples : std::max(1, data.samples / 10);
}

namespace {

std::unique_ptr<ImageDataset> make_random(const DataConfig& data, Split split, int image_size,
                                          std::int64_t seed, const RandomKind& kind) {
  const DatasetFacts facts = facts_of_kind(data, image_size, kind);
  return std::make_unique<RandomImages>(random_size(data, split), facts.shape, facts.classes,
                                        kind.frames, seed, split);
}

}  // namespace

const ImageFormat kRandomImages = {
    .name = DatasetName::random,
    .open = [](const DataConfig& data, Split split, int image_size, std::int64_t seed,
               ProgressSink*) -> std::unique_ptr<ImageDataset> {
      return make_random(data, split, image_size, seed, {});
    },
    .shape =
        [](const DataConfig&, int image_size) {
          return ImageShape{image_size, image_size, kRandomChannels};
        },
    .facts =
        [](const DataConfig& data) {
          return DatasetFacts{.classes = kRandomClasses, .train_size = data.samples};
        },
};

}  // namespace dstrain::formats

namespace dstrain {

RandomKind random_kind(const Recipe& recipe) {
  return {.classes = recipe.model.classes,
          .channels = recipe.model.channels,
          .frames = frames_of(recipe)};
}

std::unique_ptr<ImageDataset> open_random_images(const DataConfig& data, Split split,
                                                 int image_size, std::int64_t seed,
                                                 const RandomKind& kind) {
  auto images = formats::make_random(data, split, image_size, seed, kind);
  if (split == Split::train) images->augment_with(ImageChoices(data, image_size, seed));
  return images;
}

DatasetFacts facts_of_kind(const DataConfig& data, int image_size, const RandomKind& kind) {
  DatasetFacts facts = dataset_facts(data, image_size);
  if (data.name != DatasetName::random) return facts;
  if (kind.classes > 0) facts.classes = std::min(facts.classes, kind.classes);
  if (kind.channels > 0) facts.shape.channels = kind.channels;
  return facts;
}

}  // namespace dstrain
