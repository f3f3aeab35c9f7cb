#pragma once

#include <array>
#include <string>
#include <vector>

namespace dstrain {

/// Axes of the rank mesh, outermost first: neighbours on the last axis have consecutive ranks.
/// Ranks that exchange most (tensor) therefore sit on one node. `data` replicates, `shard` splits
/// state (ZeRO); their product is the number of data ranks.
enum class Axis { pipeline, data, shard, expert, sequence, tensor };
inline constexpr std::array kAxes = {Axis::pipeline, Axis::data,     Axis::shard,
                                     Axis::expert,   Axis::sequence, Axis::tensor};
[[nodiscard]] const char* axis_name(Axis axis);

/// Degree of each axis, in the order of kAxes; all at least 1.
struct Degrees {
  int pipeline = 1;
  int data = 1;
  int shard = 1;
  int expert = 1;
  int sequence = 1;
  int tensor = 1;
  [[nodiscard]] int operator[](Axis axis) const;
};

/// Rank arithmetic of a world cut along the axes. A value; no communicators, no state.
class Mesh {
 public:
  /// Error{usage} with the numbers and degrees that would do when the product is not `world_size`.
  Mesh(int world_size, const Degrees& degrees);

  [[nodiscard]] int world_size() const { return world_size_; }
  [[nodiscard]] int degree(Axis axis) const { return degrees_[axis]; }
  /// Index of `rank` along `axis`, in [0, degree).
  [[nodiscard]] int coordinate(int rank, Axis axis) const;
  /// Ranks that differ from `rank` on `axis` only, in coordinate order; contains `rank`.
  [[nodiscard]] std::vector<int> group(int rank, Axis axis) const;
  /// Ranks that see different samples: those that differ from `rank` on `data` and `shard` only.
  [[nodiscard]] std::vector<int> batch_group(int rank) const;
  [[nodiscard]] int batch_degree() const { return degree(Axis::data) * degree(Axis::shard); }
  /// Index of `rank` within its batch_group.
  [[nodiscard]] int batch_coordinate(int rank) const;
  /// "data 2 x shard 4", only the axes above 1; "1 rank" when there is none.
  [[nodiscard]] std::string describe() const;

 private:
  /// Distance in ranks between neighbours on `axis`.
  [[nodiscard]] int stride(Axis axis) const;

  int world_size_;
  Degrees degrees_;
};

}  // namespace dstrain
