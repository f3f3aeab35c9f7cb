#include "engine/mesh/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.h"

namespace dstrain {
namespace {

std::string axes_above_one(const Degrees& degrees) {
  std::vector<std::string> parts;
  for (const Axis axis : kAxes) {
    if (degrees[axis] > 1) parts.push_back(fmt::format("{} {}", axis_name(axis), degrees[axis]));
  }
  return fmt::format("{}", fmt::join(parts, " x "));
}

std::string ranks(std::int64_t count) {
  return count == 1 ? "1 rank" : fmt::format("{} ranks", count);
}

void check_product(int world_size, const Degrees& degrees) {
  if (world_size < 1) {
    throw Error(ErrorKind::usage, fmt::format("a world of {} ranks", world_size), "use at least 1");
  }
  for (const Axis axis : kAxes) {
    if (degrees[axis] >= 1) continue;
    throw Error(ErrorKind::usage,
                fmt::format("the degree of axis {} is {}", axis_name(axis), degrees[axis]),
                "use at least 1");
  }
  const std::int64_t needed = product(degrees, kAllAxes);
  if (needed == world_size) return;
  const std::int64_t others = needed / degrees.data;
  const std::string hint =
      world_size % others == 0
          ? fmt::format("use data {}, or {}", world_size / others, ranks(needed))
          : fmt::format("use {}, or degrees whose product is {}", ranks(needed), world_size);
  const std::string axes = axes_above_one(degrees);
  throw Error(ErrorKind::usage,
              fmt::format("the mesh {} has {}, the world has {}",
                          axes.empty() ? "without axes" : axes, ranks(needed), world_size),
              hint);
}

}  // namespace

std::int64_t product(const Degrees& degrees, Axes axes) {
  constexpr std::int64_t kMax = std::int64_t{1} << 62;
  std::int64_t ranks = 1;
  for (const Axis axis : kAxes) {
    const std::int64_t degree = axes.contains(axis) ? std::max(degrees[axis], 1) : 1;
    ranks = ranks > kMax / degree ? kMax : ranks * degree;
  }
  return ranks;
}

Mesh::Mesh(int world_size, const Degrees& degrees) : world_size_(world_size), degrees_(degrees) {
  check_product(world_size, degrees);
}

int Mesh::stride(Axis axis) const {
  int ranks = 1;
  for (auto inner = kAxes.rbegin(); inner != kAxes.rend() && *inner != axis; ++inner) {
    ranks *= degrees_[*inner];
  }
  return ranks;
}

int Mesh::degree(Axes axes) const { return static_cast<int>(product(degrees_, axes)); }

int Mesh::coordinate(int rank, Axes axes) const {
  DSTRAIN_CHECK(rank >= 0 && rank < world_size_,
                fmt::format("rank {} in a world of {}", rank, world_size_));
  int index = 0;
  for (const Axis axis : kAxes) {
    if (axes.contains(axis)) index = index * degrees_[axis] + rank / stride(axis) % degrees_[axis];
  }
  return index;
}

std::vector<int> Mesh::group(int rank, Axes axes) const {
  std::vector<int> ranks = {rank};
  for (const Axis axis : kAxes) {
    if (!axes.contains(axis)) continue;
    std::vector<int> along;
    for (const int other : ranks) {
      const int first = other - coordinate(other, axis) * stride(axis);
      for (int i = 0; i < degrees_[axis]; ++i) along.push_back(first + i * stride(axis));
    }
    ranks = std::move(along);
  }
  return ranks;
}

std::string Mesh::describe() const {
  const std::string axes = axes_above_one(degrees_);
  return axes.empty() ? "1 rank" : axes;
}

}  // namespace dstrain
