#include "engine/data/text/selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/base/error.h"
#include "engine/data/text/hash.h"
#include "engine/data/text/tokenise.h"

namespace dstrain::text {
namespace {

/// The groups of lower hash are held out; the records, where all are of one group.
class HeldOut {
 public:
  HeldOut(const TokenFiles& file, double share) {
    if (share <= 0 || file.size() == 0) return;
    for (std::int64_t i = 1; i < file.size() && one_group_; ++i) {
      one_group_ = file.sample(i).group == file.sample(0).group;
    }
    std::uint64_t lowest = UINT64_MAX;
    for (std::int64_t i = 0; i < file.size(); ++i) lowest = std::min(lowest, hash(file.sample(i)));
    // 2^64 * share, below 2^64 since share < 1.
    limit_ = std::max(static_cast<std::uint64_t>(std::ldexp(share, 64)), lowest + 1);
  }
  [[nodiscard]] bool contains(const TokenFiles::Sample& sample) const {
    return hash(sample) < limit_;
  }

 private:
  [[nodiscard]] std::uint64_t hash(const TokenFiles::Sample& sample) const {
    return one_group_ ? hash64(std::as_bytes(std::span(&sample.record, 1))) : sample.group;
  }

  std::uint64_t limit_ = 0;
  bool one_group_ = true;
};

/// First token of sample `i` that data.loss trains, unless it is all.
std::int64_t first_answer(const DataConfig& data, const TokenFiles& file, std::int64_t i) {
  if (data.loss == LossOn::response || !file.summary().marked) return file.sample(i).response;
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(file.length(i)));
  std::vector<std::uint8_t> trained(tokens.size());
  file.copy(i, tokens, trained);
  return std::ranges::find(trained, 1) - trained.begin();
}

}  // namespace

Selection select(const DataConfig& data, const SourceFiles& sources, const TokenFiles& file,
                 Part part) {
  const TokenFileSummary& summary = file.summary();
  if (file.size() > std::numeric_limits<std::uint32_t>::max())
    throw Error(
        ErrorKind::data,
        fmt::format("{}: {} samples, more than a run can tell apart", data.path, file.size()),
        "make samples longer, or use fewer files");
  if (data.bad_record == BadRecord::stop && summary.num_problems > 0) {
    throw_problem(data, sources, summary);
  }
  Selection selection;
  selection.unused = summary.num_problems;
  if (!summary.problems.empty()) {
    const Problem& first = summary.problems.front();
    selection.first_left_out =
        fmt::format("{}: {}", describe_record(data, sources, summary, first.record), first.text);
  }
  const HeldOut held_out(file, part == Part::whole ? 0 : data.test_share);
  const std::int64_t together = data.pairs ? 2 : 1;  // samples that stay together
  const std::int64_t max = data.subset == 0 ? file.size() : data.subset * together;
  for (std::int64_t i = 0; i < file.size() && std::ssize(selection.samples) < max; i += together) {
    const TokenFiles::Sample sample = file.sample(i);
    if (part != Part::whole && held_out.contains(sample) != (part == Part::held_out)) continue;
    const std::int64_t length = data.pairs ? file.length(i) + file.length(i + 1) : file.length(i);
    if (length > data.sequence) {
      const bool no_response =
          !data.pairs && data.loss != LossOn::all && first_answer(data, file, i) >= data.sequence;
      const auto what = [&] {
        const std::string record = describe_record(data, sources, summary, sample.record);
        if (data.pairs)
          return fmt::format(
              "{}: its two answers with their prompts have {} tokens, data.sequence "
              "is {}",
              record, length, data.sequence);
        if (data.too_long == TooLong::truncate) {
          return fmt::format("{}: its response begins after {} tokens, data.sequence is {}", record,
                             first_answer(data, file, i), data.sequence);
        }
        return fmt::format("{}: it has {} tokens, data.sequence is {}", record, length,
                           data.sequence);
      };
      if (data.too_long == TooLong::stop) {
        throw Error(ErrorKind::data, what(),
                    "raise data.sequence, or set data.too_long to truncate or skip");
      }
      if (data.pairs || data.too_long != TooLong::truncate || no_response) {
        if (selection.first_left_out.empty()) selection.first_left_out = what();
        ++selection.too_long;
        continue;
      }
      ++selection.cut;
    }
    for (std::int64_t one = i; one < i + together; ++one) {
      selection.samples.push_back(static_cast<std::uint32_t>(one));
      selection.lengths.push_back(
          static_cast<std::int32_t>(std::min<std::int64_t>(file.length(one), data.sequence)));
    }
  }
  return selection;
}

std::string with_commas(std::int64_t number) {
  std::string digits = fmt::format("{}", number);
  for (auto at = static_cast<std::int64_t>(digits.size()) - 3; at > (number < 0 ? 1 : 0); at -= 3) {
    digits.insert(static_cast<std::size_t>(at), 1, ',');
  }
  return digits;
}

std::string describe(const DataConfig& data, const char* split, const Selection& selection) {
  const std::int64_t size = std::ssize(selection.samples) / (data.pairs ? 2 : 1);
  std::string text = fmt::format("data, {}: {} {}", split, with_commas(size),
                                 data.pairs ? "pairs of answers" : "samples");
  if (selection.cut > 0) {
    text += fmt::format(", {} cut to {} tokens", with_commas(selection.cut), data.sequence);
  }
  if (data.subset > 0 && size < data.subset)
    text += fmt::format(", fewer than data.subset ({})", with_commas(data.subset));
  return text + left_out_text(selection);
}

std::string left_out_text(const Selection& selection) {
  const std::int64_t left_out = selection.too_long + selection.unused;
  if (left_out == 0) return "";
  return fmt::format(", {} left out: first at {}", with_commas(left_out), selection.first_left_out);
}

}  // namespace dstrain::text
