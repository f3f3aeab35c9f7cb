#include "engine/data/text_rows.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "engine/base/error.h"
#include "engine/data/text/hash.h"

namespace dstrain::text {
namespace {

/// Whether marks say which tokens are labels.
bool chooses(const TokenFiles& file, LossOn loss) {
  return file.summary().marked && loss != LossOn::all;
}

/// Rows of two samples, one after the other.
Packing in_pairs(std::size_t samples) {
  Packing pairs = unpacked(samples);
  std::erase_if(pairs.begins, [](std::uint32_t begin) { return begin % 2 != 0; });
  pairs.max_samples = 2;
  return pairs;
}

/// First token of sample `i` that may be a label.
std::size_t first_label(LossOn loss, const TokenFiles& file, std::int64_t i) {
  const bool whole = loss == LossOn::all || (loss == LossOn::assistant && file.summary().marked);
  return whole ? 1 : std::max<std::size_t>(1, file.sample(i).response);
}

class Rows final : public TextDataset {
 public:
  Rows(const DataConfig& data, TokenFiles file, Selection selection, std::int64_t seed)
      : sequence_(data.sequence),
        loss_(loss_on(data)),
        pairs_(data.pairs),
        file_(std::move(file)),
        selection_(std::move(selection)) {
    packing_ = pairs_         ? in_pairs(selection_.lengths.size())
               : data.packing ? pack(selection_.lengths, sequence_, seed)
                              : unpacked(selection_.lengths.size());
    max_packed_ = pairs_ || data.packing ? packing_.max_samples : 0;
  }

  [[nodiscard]] std::int64_t size() const override { return packing_.rows(); }
  [[nodiscard]] int sequence() const override { return sequence_; }
  [[nodiscard]] int vocab_size() const override {
    return static_cast<int>(std::max(file_.summary().highest, file_.summary().pad)) + 1;
  }
  [[nodiscard]] int max_packed() const override { return max_packed_; }
  [[nodiscard]] bool has_pairs() const override { return pairs_; }
  [[nodiscard]] std::string pairs_key() const override {
    const std::string_view samples(reinterpret_cast<const char*>(selection_.samples.data()),
                                   selection_.samples.size() * sizeof(std::uint32_t));
    return hash128(file_.keys().append(samples));
  }

  [[nodiscard]] std::int64_t targets(std::int64_t index) const override {
    if (pairs_) return 1;
    std::int64_t sum = 0;
    for (const std::uint32_t i : samples_of(index)) {
      sum += num_targets(loss_, file_, selection_.samples[i], selection_.lengths[i]);
    }
    return sum;
  }

  std::int64_t read(std::int64_t index, const TextRow& row,
                    std::vector<std::int32_t>& starts) const override {
    DSTRAIN_CHECK(std::cmp_equal(row.tokens.size(), sequence_) &&
                      row.labels.size() == row.tokens.size() &&
                      row.weights.size() == row.tokens.size(),
                  "wrong row buffers");
    starts.clear();
    std::size_t begin = 0;
    for (const std::uint32_t i : samples_of(index)) {
      const auto length = static_cast<std::size_t>(selection_.lengths[i]);
      starts.push_back(static_cast<std::int32_t>(begin));
      std::vector<std::uint8_t> labels(length);
      copy_with_labels(loss_, file_, selection_.samples[i], row.tokens.subspan(begin, length),
                       labels);
      label(row, begin, labels, pairs_ && begin > 0 ? -1.0F : 1.0F);
      begin += length;
    }
    // No token attends to what fills up the row: it goes on as the end of the last sample.
    std::ranges::fill(row.tokens.subspan(begin), std::int64_t{file_.summary().pad});
    std::ranges::fill(row.labels.subspan(begin), 0);
    std::ranges::fill(row.weights.subspan(begin), 0.0F);
    for (std::size_t s = 0; s < starts.size() && !row.positions.empty(); ++s) {
      const auto first = static_cast<std::size_t>(starts[s]);
      const std::size_t end =
          s + 1 < starts.size() ? static_cast<std::size_t>(starts[s + 1]) : row.positions.size();
      for (std::size_t t = first; t < end; ++t) {
        row.positions[t] = static_cast<std::int32_t>(t - first);
      }
    }
    return static_cast<std::int64_t>(begin);
  }

 private:
  /// Places in `selection_` of the samples of row `index`.
  [[nodiscard]] std::span<const std::uint32_t> samples_of(std::int64_t index) const {
    DSTRAIN_CHECK(index >= 0 && index < size(), "no such row");
    const auto row = static_cast<std::size_t>(index);
    return std::span(packing_.samples)
        .subspan(packing_.begins[row], packing_.begins[row + 1] - packing_.begins[row]);
  }

  static void label(const TextRow& row, std::size_t begin, std::span<const std::uint8_t> labels,
                    float weight) {
    for (std::size_t t = 0; t < labels.size(); ++t) {
      const bool counts = t + 1 < labels.size() && labels[t + 1] != 0;
      row.labels[begin + t] = counts ? row.tokens[begin + t + 1] : 0;
      row.weights[begin + t] = counts ? weight : 0.0F;
    }
  }

  int sequence_;
  LossOn loss_;
  bool pairs_;
  TokenFiles file_;
  Selection selection_;
  Packing packing_;
  int max_packed_ = 0;
};

}  // namespace

LossOn loss_on(const DataConfig& data) { return data.pairs ? LossOn::assistant : data.loss; }

void copy_with_labels(LossOn loss, const TokenFiles& file, std::int64_t i,
                      std::span<std::int64_t> tokens, std::span<std::uint8_t> labels) {
  std::ranges::fill(labels, 1);
  file.copy(i, tokens, chooses(file, loss) ? labels : std::span<std::uint8_t>());
  // The first token has none before it that could foretell it.
  std::fill_n(labels.begin(), std::min(labels.size(), first_label(loss, file, i)), 0);
}

std::int64_t num_targets(LossOn loss, const TokenFiles& file, std::int64_t i, std::int64_t length) {
  const auto first = static_cast<std::int64_t>(first_label(loss, file, i));
  if (!chooses(file, loss) || length <= first) return std::max<std::int64_t>(0, length - first);
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(length));
  std::vector<std::uint8_t> labels(tokens.size());
  copy_with_labels(loss, file, i, tokens, labels);
  return std::ranges::count(labels, 1);
}

std::unique_ptr<TextDataset> make_rows(const DataConfig& data, TokenFiles file, Selection selection,
                                       std::int64_t seed) {
  return std::make_unique<Rows>(data, std::move(file), std::move(selection), seed);
}

}  // namespace dstrain::text
