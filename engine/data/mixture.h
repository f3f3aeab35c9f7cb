#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace dstrain {

class Dataset;

/// The order in which a mixture takes the samples of its members: a pure function of the position,
/// which counts through the whole run, so that it is the same on any number of ranks and after a
/// resume. Blocks of positions have exact shares: before block k member i has had
/// floor(B k C_i) - floor(B k C_(i-1)) turns, where C_i are the cumulative shares; whose turn it is
/// inside a block is a permutation by (seed, k). The n-th turn of member i takes place n % size_i
/// of its own order by (seed + i, n / size_i): each of its samples once in each of its epochs.
class Mixture {
 public:
  struct Member {
    std::string name;       ///< for people
    std::int64_t size = 0;  ///< samples; their indices follow those of the members before
    double weight = -1;     ///< of all members, or of none: -1
  };
  /// A turn: the `nth` of `member`.
  struct Turn {
    int member = 0;
    std::int64_t nth = 0;
  };

  /// Without weights they are size^(1/temperature). `epoch_of`: sum, longest, shortest or a
  /// member's number. Error{usage} names data.mixture.N where a share is below 1 / 65,536.
  Mixture(std::vector<Member> members, double temperature, const std::string& epoch_of,
          std::int64_t seed);

  [[nodiscard]] const std::vector<Member>& members() const { return members_; }
  [[nodiscard]] double share(int member) const;
  /// Positions of a block.
  [[nodiscard]] std::int64_t block() const { return block_; }
  /// Positions of an epoch.
  [[nodiscard]] std::int64_t epoch() const { return epoch_; }
  [[nodiscard]] Turn turn(std::int64_t position) const;
  /// Index of the sample, among those of all members.
  [[nodiscard]] std::int64_t sample(std::int64_t position) const;
  /// Turns of a member before `position`.
  [[nodiscard]] std::int64_t turns_before(int member, std::int64_t position) const;
  /// Epochs of a member before `position`.
  [[nodiscard]] double epochs_before(int member, std::int64_t position) const;
  /// The fewest positions in which a member has so many turns.
  [[nodiscard]] std::int64_t positions_for(int member, std::int64_t turns) const;

  /// "chat 1.00, jsonl 4.30": epochs of each before `position`.
  [[nodiscard]] std::string describe_epochs(std::int64_t position) const;

 private:
  struct Block {
    std::int64_t number;
    std::vector<Turn> turns;
  };
  [[nodiscard]] std::int64_t turns_before_block(std::size_t member, std::int64_t block) const;
  [[nodiscard]] std::shared_ptr<const Block> block_of(std::int64_t position) const;

  std::vector<Member> members_;
  std::int64_t seed_;
  std::vector<std::uint64_t> ends_;  ///< cumulative shares, of 2^32
  std::int64_t block_ = 0;
  std::int64_t epoch_ = 0;
  // Blocks that threads of a loader are in: a memory of what can be computed at any time.
  mutable std::mutex mutex_;
  mutable std::array<std::shared_ptr<const Block>, 4> recent_;
};

/// Positions of an epoch of training: the samples, unless it is a mixture.
[[nodiscard]] std::int64_t epoch_size(const Dataset& dataset);
/// Sample at `position` of an epoch in training; `used`: positions that each epoch uses.
[[nodiscard]] std::int64_t trained_sample(const Dataset& dataset, std::int64_t seed,
                                          std::int64_t epoch, std::int64_t position,
                                          std::int64_t used);

}  // namespace dstrain
