#include "engine/train/execute/flipped_bit.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/index.h"

namespace dstrain {
namespace {

constexpr const char* kVariable = "DSTRAIN_FLIP";
constexpr const char* kTesting = "DSTRAIN_TESTING";

[[noreturn]] void refuse(std::string_view text, const std::string& problem) {
  throw Error(ErrorKind::usage, fmt::format("{}={}: {}", kVariable, text, problem),
              "it is rank:step:tensor:bit, such as 1:30:embeddings.weight:20, for tests; unset it");
}

template <class Number>
Number number(std::string_view text, std::string_view word, const char* what, Number max) {
  Number value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || value < 0 || value > max)
    refuse(text, fmt::format("'{}' is no {}", word, what));
  return value;
}

/// Flips bit `bit` of fp32 in a number of 2 or 4 bytes.
void flip_bit(const at::Tensor& element, int bit) {
  const bool narrow = element.element_size() == 2;
  if (narrow && bit < 16) return;
  const auto mask = static_cast<std::int64_t>(std::uint32_t{1} << (narrow ? bit - 16 : bit));
  at::Tensor bits = element.view(narrow ? at::kShort : at::kInt);
  bits.bitwise_xor_(narrow ? static_cast<std::int64_t>(static_cast<std::int16_t>(mask))
                           : static_cast<std::int64_t>(static_cast<std::int32_t>(mask)));
}

}  // namespace

std::optional<FlippedBit> FlippedBit::of_environment(const ParameterGroups& groups) {
  const char* value = std::getenv(kVariable);
  if (value == nullptr) return std::nullopt;
  const char* testing = std::getenv(kTesting);
  if (testing == nullptr || std::string_view(testing) != "1") {
    throw Error(ErrorKind::usage,
                fmt::format("{} is set, which makes a rank train wrong weights", kVariable),
                fmt::format("unset it; tests set {}=1 beside it", kTesting));
  }
  const std::string_view text = value;
  std::vector<std::string_view> words;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(':', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  if (words.size() != 4) refuse(text, fmt::format("has {} parts", words.size()));
  FlippedBit flipped;
  flipped.text_ = text;
  flipped.rank_ = number<int>(text, words[0], "rank", 1 << 30);
  flipped.step_ = number<std::int64_t>(text, words[1], "step", std::int64_t{1} << 60);
  flipped.bit_ = number<int>(text, words[3], "bit of fp32", 31);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t i = 0; i < groups[g].size(); ++i) {
      if (groups[g][i]->parts.front().name != words[2]) continue;
      flipped.group_ = static_cast<int>(g);
      flipped.tensor_ = i;
      return flipped;
    }
  }
  refuse(text, fmt::format("no tensor '{}' begins a parameter of this model", words[2]));
}

void FlippedBit::flip(std::int64_t step, int rank, StateStore& states) const {
  if (step + 1 != step_ || rank != rank_ || !states.holds(group_)) return;
  const std::int64_t place = states.flat(group_).offset(tensor_);
  const Range own = states.own_range(group_);
  const bool owned = own.begin <= place && place < own.end;
  const at::Tensor whole = states.resident_parameters(group_);
  if (whole.defined()) {
    flip_bit(whole.narrow(0, place, 1), bit_);
  } else if (owned) {
    flip_bit(states.own_parameters(group_).narrow(0, place - own.begin, 1), bit_);
  }
  const GroupMemory* const master = states.master_at_rest(group_).memory;
  if (owned && master != nullptr && master->dtype() == at::kFloat)  // else the bit was the weight's
    flip_bit(states.master(group_).narrow(0, place - own.begin, 1), bit_);
}

std::string FlippedBit::note() const {
  return fmt::format("{}={}: rank {} makes a bit wrong at the end of step {}", kVariable, text_,
                     rank_, step_);
}

}  // namespace dstrain
