#include "engine/data/mixed_sets.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/data/mixture.h"

namespace dstrain {
namespace {

/// Which member has a sample, and where.
class Places {
 public:
  template <class Set>
  explicit Places(const std::vector<std::unique_ptr<Set>>& members) {
    for (const auto& member : members) ends_.push_back(size() + member->size());
  }
  [[nodiscard]] std::int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }
  struct Place {
    std::size_t member;
    std::int64_t index;
  };
  [[nodiscard]] Place of(std::int64_t index) const {
    DSTRAIN_CHECK(index >= 0 && index < size(), "no such sample");
    const auto found = std::ranges::upper_bound(ends_, index);
    const auto member = static_cast<std::size_t>(found - ends_.begin());
    return {member, index - (member == 0 ? 0 : ends_[member - 1])};
  }

 private:
  std::vector<std::int64_t> ends_;
};

template <class Set>
Mixture mixture_of(const std::vector<std::unique_ptr<Set>>& sets, const DataConfig& data,
                   std::int64_t seed) {
  const std::vector<std::string> names = member_names(data);
  std::vector<Mixture::Member> members;
  for (std::size_t i = 0; i < sets.size(); ++i)
    members.push_back(
        {.name = names.at(i), .size = sets[i]->size(), .weight = data.mixture.at(i).weight});
  return {std::move(members), data.mixture_temperature, data.epoch_of, seed};
}

class MixedText final : public TextDataset {
 public:
  MixedText(std::vector<std::unique_ptr<TextDataset>> members, const DataConfig& data,
            std::int64_t seed)
      : members_(std::move(members)),
        places_(members_),
        mixture_(mixture_of(members_, data, seed)) {
    for (const auto& member : members_) {
      vocab_size_ = std::max(vocab_size_, member->vocab_size());
      max_packed_ = std::max(max_packed_, member->max_packed());
    }
  }

  [[nodiscard]] std::int64_t size() const override { return places_.size(); }
  [[nodiscard]] const Mixture* mixture() const override { return &mixture_; }
  [[nodiscard]] int sequence() const override { return members_.front()->sequence(); }
  [[nodiscard]] int vocab_size() const override { return vocab_size_; }
  [[nodiscard]] int max_packed() const override { return max_packed_; }
  [[nodiscard]] std::int64_t targets(std::int64_t index) const override {
    const auto place = places_.of(index);
    return members_[place.member]->targets(place.index);
  }
  std::int64_t read(std::int64_t index, const TextRow& row,
                    std::vector<std::int32_t>& starts) const override {
    const auto place = places_.of(index);
    return members_[place.member]->read(place.index, row, starts);
  }

 private:
  std::vector<std::unique_ptr<TextDataset>> members_;
  Places places_;
  Mixture mixture_;
  int vocab_size_ = 0, max_packed_ = 0;
};

class MixedImages final : public ImageDataset {
 public:
  MixedImages(std::vector<std::unique_ptr<ImageDataset>> members, const DataConfig& data,
              std::int64_t seed)
      : members_(std::move(members)),
        places_(members_),
        mixture_(mixture_of(members_, data, seed)) {
    handle_damaged(members_.front()->damaged());
  }

  [[nodiscard]] std::int64_t size() const override { return places_.size(); }
  [[nodiscard]] const Mixture* mixture() const override { return &mixture_; }
  [[nodiscard]] int classes() const override { return members_.front()->classes(); }
  [[nodiscard]] std::vector<std::string> class_names() const override {
    return members_.front()->class_names();
  }
  [[nodiscard]] ImageShape shape() const override { return members_.front()->shape(); }
  [[nodiscard]] int frames() const override { return members_.front()->frames(); }
  [[nodiscard]] int read(std::int64_t index, std::span<std::uint8_t> pixels) const override {
    const auto place = places_.of(index);
    return members_[place.member]->read(place.index, pixels);
  }
  [[nodiscard]] int label(std::int64_t index) const override {
    const auto place = places_.of(index);
    return members_[place.member]->label(place.index);
  }
  [[nodiscard]] int read_parts(
      std::int64_t index, const DecodeRequest& request,
      const std::function<void(int, const ImagePart&, const ImageView&)>& take) const override {
    const auto place = places_.of(index);
    return members_[place.member]->read_parts(place.index, request, take);
  }
  [[nodiscard]] std::int64_t stored_bytes(std::int64_t index) const override {
    const auto place = places_.of(index);
    return members_[place.member]->stored_bytes(place.index);
  }

 private:
  std::vector<std::unique_ptr<ImageDataset>> members_;
  Places places_;
  Mixture mixture_;
};

std::string shape_words(const ImageDataset& images) {
  const ImageShape shape = images.shape();
  return fmt::format("{} frame{} of {} x {} x {}", images.frames(), images.frames() == 1 ? "" : "s",
                     shape.height, shape.width, shape.channels);
}

/// What the labels mean, in words: as far as `others` have them.
std::string class_words(const ImageDataset& images, const ImageDataset& others) {
  const std::vector<std::string> own = images.class_names(), theirs = others.class_names();
  std::string words = fmt::format("{} classes", images.classes());
  for (std::size_t i = 0; i < std::min(own.size(), theirs.size()); ++i) {
    if (own[i] != theirs[i]) return words + fmt::format(", of which {} is {}", i, own[i]);
  }
  return words;
}

}  // namespace

std::unique_ptr<TextDataset> mix(std::vector<std::unique_ptr<TextDataset>> members,
                                 const DataConfig& data, std::int64_t seed) {
  return std::make_unique<MixedText>(std::move(members), data, seed);
}

std::unique_ptr<ImageDataset> mix(std::vector<std::unique_ptr<ImageDataset>> members,
                                  const DataConfig& data, std::int64_t seed) {
  const ImageDataset& first = *members.front();
  for (std::size_t i = 1; i < members.size(); ++i) {
    const auto refuse = [&](const std::string& own, const std::string& others, const char* hint) {
      if (own == others) return;
      throw Error(ErrorKind::usage,
                  fmt::format("data.mixture.{}: {}, data.mixture.0 has {}", i, own, others), hint);
    };
    refuse(class_words(*members[i], first), class_words(first, *members[i]),
           "mix data sets of the same classes, in the same order");
    refuse(shape_words(*members[i]), shape_words(first), "mix images of one stored size");
    const auto damaged = [&](std::size_t member) {
      return data.mixture.at(member).bad_record == BadRecord::stop ? "bad_record stop"
                                                                   : "bad_record skip";
    };
    refuse(damaged(i), damaged(0), "give all members the same");
  }
  return std::make_unique<MixedImages>(std::move(members), data, seed);
}

}  // namespace dstrain
