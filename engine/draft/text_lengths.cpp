#include "engine/draft/text_lengths.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/data/text/encoder.h"
#include "engine/data/text/format.h"
#include "engine/data/text/sources.h"
#include "engine/data/text/token_files.h"
#include "engine/data/text/tokenizer_source.h"

namespace dstrain::draft {
namespace {

namespace fs = std::filesystem;

/// Ends a reader that would go through all files.
struct EnoughRead {};

/// Tokens of the record's sample, as tokenise() makes them; `problem`: why it has none.
std::int64_t tokens_of(const text::Encoder& encoder, const text::Record& record,
                       std::string& problem) {
  std::vector<std::uint32_t> tokens;
  if (encoder.append_chat) {
    std::vector<text::EncodedChat> samples;  // one: drafts split no chats
    problem = encoder.append_chat(record.prompt, tokens, samples);
    return std::ssize(tokens);
  }
  tokens = encoder.begin;
  encoder.append_record(record.prompt, record.response, tokens);
  if (tokens.empty() || tokens.back() != encoder.end) tokens.push_back(encoder.end);
  return std::ssize(tokens);
}

class LengthReader {
 public:
  explicit LengthReader(const DataConfig& data) : data_(data) {}

  /// Tokens are counted already, so all samples are looked at.
  void read(const text::TokenFiles& files) {
    for (std::int64_t i = 0; i < files.size(); ++i) lengths_.push_back(files.length(i));
  }

  void read(const text::SourceFiles& sources, const text::Encoder& encoder) {
    std::vector<double> sizes;
    for (const fs::path& file : sources.files)
      sizes.push_back(static_cast<double>(fs::file_size(file)));
    const double all = std::accumulate(sizes.begin(), sizes.end(), 0.0);
    double before = 0, share = 1;
    try {
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        text::text_format(data_).read(
            data_, sources, sources.files[i], encoder.system, [&](text::Record&& record) {
              take(sources.files[i], record, encoder);
              share = all == 0 ? 1 : (before + record.share * sizes[i]) / all;
              if (std::cmp_greater_equal(lengths_.size() + static_cast<std::size_t>(unusable_),
                                         kLookedRecords))
                throw EnoughRead();
            });
        before += sizes[i];
      }
      share_ = 1;
    } catch (const EnoughRead&) {
      share_ = share;
    }
  }

  [[nodiscard]] TextLengths lengths() {
    if (lengths_.empty())
      throw Error(ErrorKind::data,
                  unusable_ == 0 ? fmt::format("{} holds no records", data_.path)
                                 : fmt::format("none of the first {} records can be used: {}",
                                               unusable_, first_unusable_),
                  "records that cannot be used are left out of a run; here nothing would be left");
    std::ranges::sort(lengths_);
    const auto at = [&](double share) {
      const double place = std::ceil(share * static_cast<double>(lengths_.size())) - 1;
      return lengths_[static_cast<std::size_t>(std::max(0.0, place))];
    };
    const auto count = static_cast<double>(lengths_.size());
    return {.looked = static_cast<int>(lengths_.size()),
            .unusable = unusable_,
            .first_unusable = first_unusable_,
            .p50 = at(0.5),
            .p95 = at(0.95),
            .longest = lengths_.back(),
            .mean = static_cast<double>(
                        std::accumulate(lengths_.begin(), lengths_.end(), std::int64_t{0})) /
                    count,
            .samples = std::llround(count / std::max(share_, 1e-9)),
            .about = share_ < 1};
  }

 private:
  void take(const fs::path& file, const text::Record& record, const text::Encoder& encoder) {
    std::string problem = record.problem;
    const std::int64_t tokens = problem.empty() ? tokens_of(encoder, record, problem) : 0;
    if (problem.empty()) return lengths_.push_back(tokens);
    if (unusable_++ == 0)
      first_unusable_ = fmt::format("{}: {} {}: {}", shown_path(file),
                                    text::text_format(data_).record, record.number, problem);
  }

  const DataConfig& data_;
  std::vector<std::int64_t> lengths_;
  int unusable_ = 0;
  std::string first_unusable_;
  double share_ = 1;  ///< of the files that was read
};

}  // namespace

TextLengths measure_lengths(const DataConfig& data, const std::string& weights) {
  const text::TextFormat& format = text::text_format(data);
  if (format.check != nullptr) format.check(data);
  const text::Sources sources = text::find_sources(data);
  const text::EncoderSource tokenizer = text::tokenizer_source(data, weights);
  LengthReader reader(data);
  if (format.prepared)
    reader.read(text::open_prepared(sources.train.files, tokenizer.tokenizer));
  else
    reader.read(sources.train, tokenizer.open());
  return reader.lengths();
}

}  // namespace dstrain::draft
