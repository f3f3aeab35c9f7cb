#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace dstrain {

/// Axes of the rank mesh, outermost first: neighbours on the last axis have consecutive ranks.
/// Ranks that exchange most (tensor) therefore sit on one node. `data` replicates, `shard` splits
/// state (ZeRO), `expert` spreads experts over ranks that see different samples: the product of the
/// three is the number of data ranks.
enum class Axis { pipeline, data, shard, expert, sequence, tensor };

/// Degree of each axis, in the order of Axis; all at least 1.
struct Degrees {
  int pipeline = 1;
  int data = 1;
  int shard = 1;
  int expert = 1;
  int sequence = 1;
  int tensor = 1;
  [[nodiscard]] int operator[](Axis axis) const;
  [[nodiscard]] int& operator[](Axis axis);
  auto operator<=>(const Degrees&) const = default;
};

/// All that code which treats axes alike asks of one.
struct AxisRow {
  const char* name;  ///< in plans, names of communicators, and of parallel.NAME where it is a key
  int Degrees::*degree;
  bool other_samples;  ///< ranks that differ on it see different samples
};
/// In the order of Axis.
inline constexpr std::array kAxisRows = {
    AxisRow{"pipeline", &Degrees::pipeline, false}, AxisRow{"data", &Degrees::data, true},
    AxisRow{"shard", &Degrees::shard, true},        AxisRow{"expert", &Degrees::expert, true},
    AxisRow{"sequence", &Degrees::sequence, false}, AxisRow{"tensor", &Degrees::tensor, false}};
inline constexpr std::size_t kNumAxes = kAxisRows.size();
inline constexpr std::array<Axis, kNumAxes> kAxes = [] {
  std::array<Axis, kNumAxes> axes{};
  for (std::size_t i = 0; i < kNumAxes; ++i) axes[i] = static_cast<Axis>(i);
  return axes;
}();
[[nodiscard]] constexpr const AxisRow& axis_row(Axis axis) {
  return kAxisRows[static_cast<std::size_t>(axis)];
}
[[nodiscard]] constexpr const char* axis_name(Axis axis) { return axis_row(axis).name; }
inline int Degrees::operator[](Axis axis) const { return this->*axis_row(axis).degree; }
inline int& Degrees::operator[](Axis axis) { return this->*axis_row(axis).degree; }

/// A set of axes; one axis is the set of itself.
class Axes {
 public:
  constexpr Axes() = default;
  constexpr Axes(Axis axis) : bits_(bit(axis)) {}
  constexpr Axes(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) bits_ |= bit(axis);
  }
  [[nodiscard]] constexpr bool contains(Axis axis) const { return (bits_ & bit(axis)) != 0; }
  [[nodiscard]] constexpr bool empty() const { return bits_ == 0; }
  /// A number below kNumAxisSets, of its own for each set.
  [[nodiscard]] constexpr unsigned bits() const { return bits_; }
  [[nodiscard]] friend constexpr Axes operator|(Axes a, Axes b) {
    a.bits_ |= b.bits_;
    return a;
  }
  /// Those of `a` that are not in `b`.
  [[nodiscard]] friend constexpr Axes operator-(Axes a, Axes b) {
    a.bits_ &= ~b.bits_;
    return a;
  }
  constexpr auto operator<=>(const Axes&) const = default;

 private:
  /// The innermost axis has the lowest one.
  static constexpr unsigned bit(Axis axis) {
    return 1U << (kNumAxes - 1 - static_cast<unsigned>(axis));
  }
  unsigned bits_ = 0;
};
inline constexpr std::size_t kNumAxisSets = std::size_t{1} << kNumAxes;
inline constexpr Axes kAllAxes = [] {
  Axes all;
  for (const Axis axis : kAxes) all = all | axis;
  return all;
}();
/// Ranks that differ on these see different samples.
inline constexpr Axes kDataAxes = [] {
  Axes data;
  for (const Axis axis : kAxes) {
    if (axis_row(axis).other_samples) data = data | axis;
  }
  return data;
}();
/// Ranks that differ on these run the same blocks of the same samples.
inline constexpr Axes kAxesInBlocks = kAllAxes - (kDataAxes | Axis::pipeline);

/// Ranks along `axes`; at most 2^62, and a degree below 1 counts as 1.
[[nodiscard]] std::int64_t product(const Degrees& degrees, Axes axes);

/// Rank arithmetic of a world cut along the axes. A value; no communicators, no state.
class Mesh {
 public:
  /// Error{usage} with the numbers and valid degrees when the product is not `world_size`.
  Mesh(int world_size, const Degrees& degrees);

  [[nodiscard]] int world_size() const { return world_size_; }
  /// Ranks of a group along `axes`.
  [[nodiscard]] int degree(Axes axes) const;
  /// Index of `rank` in its group along `axes`, in [0, degree).
  [[nodiscard]] int coordinate(int rank, Axes axes) const;
  /// Ranks that differ from `rank` on `axes` only, in coordinate order (the last axis counts
  /// fastest); contains `rank`.
  [[nodiscard]] std::vector<int> group(int rank, Axes axes) const;
  /// "data 2 x shard 4", only the axes above 1; "1 rank" when there is none.
  [[nodiscard]] std::string describe() const;

 private:
  /// Distance in ranks between neighbours on `axis`.
  [[nodiscard]] int stride(Axis axis) const;

  int world_size_;
  Degrees degrees_;
};

}  // namespace dstrain
