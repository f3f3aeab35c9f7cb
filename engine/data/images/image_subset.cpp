#include "engine/data/images/image_subset.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "engine/data/order.h"

namespace dstrain {
namespace {

std::vector<std::int64_t> choose(const ImageDataset& images, std::int64_t samples,
                                 std::int64_t seed) {
  struct Turn {
    std::int64_t round;  ///< samples of its class before it
    std::int64_t sample;
  };
  std::vector<Turn> turns;
  std::vector<std::int64_t> of_class(static_cast<std::size_t>(images.classes()));
  const SampleOrder order(images.size(), seed, 0);
  for (std::int64_t i = 0; i < images.size(); ++i) {
    const std::int64_t sample = order.at(i);
    turns.push_back({of_class.at(static_cast<std::size_t>(images.label(sample)))++, sample});
  }
  std::ranges::stable_sort(turns, {}, &Turn::round);
  std::vector<std::int64_t> chosen;
  for (std::int64_t i = 0; i < samples; ++i)
    chosen.push_back(turns[static_cast<std::size_t>(i)].sample);
  return chosen;
}

class Subset final : public ImageDataset {
 public:
  Subset(std::unique_ptr<ImageDataset> images, std::vector<std::int64_t> chosen)
      : images_(std::move(images)), chosen_(std::move(chosen)) {
    handle_damaged(images_->damaged());
  }

  [[nodiscard]] std::int64_t size() const override { return std::ssize(chosen_); }
  [[nodiscard]] int classes() const override { return images_->classes(); }
  [[nodiscard]] std::vector<std::string> class_names() const override {
    return images_->class_names();
  }
  [[nodiscard]] ImageShape shape() const override { return images_->shape(); }
  [[nodiscard]] int frames() const override { return images_->frames(); }
  [[nodiscard]] int read(std::int64_t index, std::span<std::uint8_t> pixels) const override {
    return images_->read(at(index), pixels);
  }
  [[nodiscard]] int label(std::int64_t index) const override { return images_->label(at(index)); }
  [[nodiscard]] int read_parts(
      std::int64_t index, const DecodeRequest& request,
      const std::function<void(int, const ImagePart&, const ImageView&)>& take) const override {
    return images_->read_parts(at(index), request, take);
  }
  [[nodiscard]] std::optional<StoredImage> stored(std::int64_t index, int frame) const override {
    return images_->stored(at(index), frame);
  }
  [[nodiscard]] const SquareResize* square() const override { return images_->square(); }
  [[nodiscard]] std::int64_t stored_bytes(std::int64_t index) const override {
    return images_->stored_bytes(at(index));
  }

 private:
  [[nodiscard]] std::int64_t at(std::int64_t index) const {
    return chosen_.at(static_cast<std::size_t>(index));
  }

  std::unique_ptr<ImageDataset> images_;
  std::vector<std::int64_t> chosen_;
};

}  // namespace

std::unique_ptr<ImageDataset> subset_of(std::unique_ptr<ImageDataset> images, std::int64_t samples,
                                        std::int64_t seed) {
  std::vector<std::int64_t> chosen = choose(*images, samples, seed);
  return std::make_unique<Subset>(std::move(images), std::move(chosen));
}

}  // namespace dstrain
