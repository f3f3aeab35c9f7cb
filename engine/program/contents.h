#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/program/program.h"

/// What buffers hold while a program is followed on symbols.
namespace dstrain::meaning {

using Kind = Holds;
[[nodiscard]] const char* kind_name(Kind kind);

/// The meaning of consecutive elements: those of a group from `begin` on, or of each rank's share.
struct Value {
  Kind kind = Kind::gradient;
  int owner = -1;  ///< group or block; -1: a gradient to which nothing was added yet
  int micro_batch = -1;
  int state = 0;           ///< kMaster, kAverage, or a moment from 0 on
  int version = 0;         ///< updates of this step; kBehind: an update before it is missing
  std::int64_t begin = 0;  ///< in the group
  std::optional<Share> share = {};
  std::int64_t unit = 1;     ///< elements of the buffer to a value; 0: of several widths
  std::uint32_t summed = 0;  ///< axes, as in axis_bits
  double scale = 1;          ///< of a gradient
  std::vector<std::uint8_t> added = {};  ///< to a gradient, by backwards: how often
  bool coded = false;
  std::uint32_t messages_of = 0;  ///< axes whose ranks sent messages that are yet to be summed
  bool operator==(const Value&) const = default;

  /// What stands `elements` of the buffer further on.
  [[nodiscard]] Value further(std::int64_t elements) const;
};
inline constexpr int kBehind = -1;
inline constexpr int kMaster = -1, kAverage = -2;

/// A value and how many elements of the buffer hold it.
struct Part {
  Value value;
  std::int64_t elements = 0;
};

/// Bits of the axes with several ranks along which a collective runs, or ranks differ. The shard
/// axis has two, of inner and outer groups.
[[nodiscard]] std::uint32_t axis_bits(CommAxis axis, const Layout& layout);

/// One buffer. What all ranks hold at one place, and what each rank holds in its own share, which
/// lies above that.
class Content {
 public:
  [[nodiscard]] bool empty() const { return plain_.empty() && shared_.empty(); }
  /// Where it is not empty.
  [[nodiscard]] const Value& first() const {
    return (plain_.empty() ? shared_ : plain_).front().value;
  }
  /// What the view covers, in order; shares in a view of all come last. None where some of it holds
  /// nothing, or its shares lie otherwise.
  [[nodiscard]] std::optional<std::vector<Part>> read(const View& view, int ranks) const;
  /// The values of which some elements lie in the view.
  [[nodiscard]] std::vector<Value> touching(const View& view, int ranks) const;
  /// False: a part of shares would be covered that lie otherwise.
  [[nodiscard]] bool write(const View& view, const Value& value, int ranks);
  void clear() { *this = {}; }
  bool operator==(const Content&) const = default;

 private:
  struct Piece {
    std::int64_t begin = 0, end = 0;
    Value value;
    bool operator==(const Piece&) const = default;
  };
  static void assign(std::vector<Piece>& pieces, std::int64_t begin, std::int64_t end,
                     const Value& value);
  /// Appends what lies in [begin, end); false: a gap.
  static bool cover(const std::vector<Piece>& pieces, std::int64_t begin, std::int64_t end,
                    std::vector<Part>& parts);

  std::vector<Piece> plain_;    ///< ascending
  std::vector<Piece> shared_;   ///< ascending, before the share is added
  std::optional<Share> share_;  ///< of shared_
  int ranks_ = 1;               ///< along it
};

}  // namespace dstrain::meaning
