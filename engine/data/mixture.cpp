#include "engine/data/mixture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/data/dataset.h"
#include "engine/data/order.h"

namespace dstrain {
namespace {

constexpr int kFractionBits = 32;
constexpr std::int64_t kUsualBlock = 1024, kLargestBlock = 65536;

}  // namespace

Mixture::Mixture(std::vector<Member> members, double temperature, const std::string& epoch_of,
                 std::int64_t seed)
    : members_(std::move(members)), seed_(seed) {
  DSTRAIN_CHECK(!members_.empty(), "a mixture needs members");
  std::vector<double> weights;
  double sum = 0;
  for (const Member& member : members_) {
    DSTRAIN_CHECK(member.size > 0, "a member needs samples");
    const bool own = member.weight > 0;
    weights.push_back(own ? member.weight
                          : std::pow(static_cast<double>(member.size), 1 / temperature));
    sum += weights.back();
  }
  double before = 0;
  for (const double weight : weights) {
    before += weight;
    ends_.push_back(
        static_cast<std::uint64_t>(std::llround(std::ldexp(before / sum, kFractionBits))));
  }
  ends_.back() = std::uint64_t{1} << kFractionBits;
  // In each block every member has a turn: only then does its number of turns never fall.
  block_ = kUsualBlock;
  for (int i = 0; i < static_cast<int>(members_.size()); ++i) {
    while (share(i) * static_cast<double>(block_) < 1 && block_ < kLargestBlock) block_ *= 2;
    if (share(i) * static_cast<double>(block_) >= 1) continue;
    throw Error(
        ErrorKind::usage,
        fmt::format("data.mixture.{}: {} has a share of {:.2g} of the samples, less than one "
                    "of {}",
                    i, members_[to_index(i)].name, share(i), kLargestBlock),
        "raise its weight, or data.mixture_temperature, or leave it out");
  }
  std::vector<std::int64_t> whole;  // positions in which each has given all of its samples
  for (int i = 0; i < static_cast<int>(members_.size()); ++i)
    whole.push_back(positions_for(i, members_[to_index(i)].size));
  if (epoch_of == "sum") {
    for (const Member& member : members_) epoch_ += member.size;
  } else if (epoch_of == "longest") {
    epoch_ = std::ranges::max(whole);
  } else if (epoch_of == "shortest") {
    epoch_ = std::ranges::min(whole);
  } else {
    epoch_ = whole.at(std::stoul(epoch_of));
  }
}

double Mixture::share(int member) const {
  const std::uint64_t begin = member == 0 ? 0 : ends_[to_index(member - 1)];
  return std::ldexp(static_cast<double>(ends_[to_index(member)] - begin), -kFractionBits);
}

std::int64_t Mixture::turns_before_block(std::size_t member, std::int64_t block) const {
  // The product has up to 96 bits; that of the upper part is whole.
  const auto positions = static_cast<std::uint64_t>(block) * static_cast<std::uint64_t>(block_);
  const std::uint64_t upper = positions >> kFractionBits;
  const std::uint64_t lower = positions - (upper << kFractionBits);
  const auto up_to = [&](std::uint64_t end) {
    return static_cast<std::int64_t>(upper * end + (lower * end >> kFractionBits));
  };
  return up_to(ends_[member]) - (member == 0 ? 0 : up_to(ends_[member - 1]));
}

std::shared_ptr<const Mixture::Block> Mixture::block_of(std::int64_t position) const {
  const std::int64_t number = position / block_;
  const auto place = static_cast<std::size_t>(number) % recent_.size();
  {
    const std::scoped_lock lock(mutex_);
    if (recent_[place] && recent_[place]->number == number) return recent_[place];
  }
  std::vector<int> owners;
  std::vector<std::int64_t> next;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    next.push_back(turns_before_block(i, number));
    const std::int64_t turns = turns_before_block(i, number + 1) - next.back();
    owners.insert(owners.end(), static_cast<std::size_t>(turns), static_cast<int>(i));
  }
  DSTRAIN_CHECK(std::cmp_equal(owners.size(), block_), "turns of a block");
  auto block = std::make_shared<Block>(Block{.number = number, .turns = {}});
  const SampleOrder order(block_, seed_, number);
  for (std::int64_t at = 0; at < block_; ++at) {
    const int owner = owners[static_cast<std::size_t>(order.at(at))];
    block->turns.push_back({owner, next[to_index(owner)]++});
  }
  const std::scoped_lock lock(mutex_);
  recent_[place] = block;
  return block;
}

Mixture::Turn Mixture::turn(std::int64_t position) const {
  DSTRAIN_CHECK(position >= 0, "no such position");
  return block_of(position)->turns[static_cast<std::size_t>(position % block_)];
}

std::int64_t Mixture::sample(std::int64_t position) const {
  const Turn own = turn(position);
  std::int64_t first = 0;
  for (int i = 0; i < own.member; ++i) first += members_[to_index(i)].size;
  const std::int64_t size = members_[to_index(own.member)].size;
  const SampleOrder order(size, seed_ + own.member, own.nth / size);
  return first + order.at(own.nth % size);
}

std::int64_t Mixture::turns_before(int member, std::int64_t position) const {
  std::int64_t turns = turns_before_block(to_index(member), position / block_);
  const auto left = static_cast<std::size_t>(position % block_);
  if (left == 0) return turns;
  const auto block = block_of(position);
  for (std::size_t at = 0; at < left; ++at) turns += block->turns[at].member == member ? 1 : 0;
  return turns;
}

double Mixture::epochs_before(int member, std::int64_t position) const {
  return static_cast<double>(turns_before(member, position)) /
         static_cast<double>(members_[to_index(member)].size);
}

std::int64_t Mixture::positions_for(int member, std::int64_t turns) const {
  // The last block that begins with fewer turns.
  std::int64_t low = 0, high = 1;
  while (turns_before_block(to_index(member), high) < turns) high *= 2;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (turns_before_block(to_index(member), middle) < turns ? low : high) = middle;
  }
  const auto block = block_of(low * block_);
  for (std::size_t at = 0; at < block->turns.size(); ++at) {
    const Turn& one = block->turns[at];
    if (one.member == member && one.nth + 1 == turns)
      return low * block_ + static_cast<std::int64_t>(at) + 1;
  }
  DSTRAIN_CHECK(turns <= 0, "a turn in its block");
  return 0;
}

std::string Mixture::describe_epochs(std::int64_t position) const {
  std::string text;
  for (int i = 0; i < static_cast<int>(members_.size()); ++i) {
    text += fmt::format("{}{} {:.2f}", i == 0 ? "" : ", ", members_[to_index(i)].name,
                        epochs_before(i, position));
  }
  return text;
}

std::int64_t epoch_size(const Dataset& dataset) {
  const Mixture* mixture = dataset.mixture();
  return mixture == nullptr ? dataset.size() : mixture->epoch();
}

std::int64_t trained_sample(const Dataset& dataset, std::int64_t seed, std::int64_t epoch,
                            std::int64_t position, std::int64_t used) {
  if (const Mixture* mixture = dataset.mixture()) return mixture->sample(epoch * used + position);
  return SampleOrder(dataset.size(), seed, epoch).at(position);
}

}  // namespace dstrain
