#include "engine/data/images/part_resize.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/data/images/resize_loops.h"
#include "engine/kernels/image/resize_pass.h"

namespace dstrain {
namespace {

static_assert(kResizeWeightBits == resize::kWeightBits);

constexpr std::size_t kAlignment = 256;
constexpr std::int64_t kPixel = 3;  // bytes

/// Places of several things in one piece of memory.
class Places {
 public:
  /// Where `bytes` begin.
  std::size_t add(std::size_t bytes) {
    const std::size_t at = end_;
    end_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }
  [[nodiscard]] std::size_t end() const { return end_; }

 private:
  std::size_t end_ = 0;
};

/// Where the table of an axis lies.
struct TapsPlace {
  std::size_t first, begin, weights;
};

TapsPlace place_of(const resize::Taps& taps, Places& places) {
  return {places.add(std::span(taps.first).size_bytes()),
          places.add(std::span(taps.begin).size_bytes()),
          places.add(std::span(taps.weights).size_bytes())};
}

template <class T>
void put(std::span<const T> values, std::uint8_t* to) {
  std::memcpy(to, values.data(), values.size_bytes());
}

void put(const resize::Taps& taps, const TapsPlace& place, std::uint8_t* table) {
  put(std::span(taps.first), table + place.first);
  put(std::span(taps.begin), table + place.begin);
  put(std::span(taps.weights), table + place.weights);
}

/// The axis of a pass, of which a line is a row of the image or a column.
enum class Along { columns, rows };

/// `pitch` is of the image at `from`; the one at `to` is dense.
ResizePass make_pass(Along along, const TapsPlace& taps, const std::uint8_t* table,
                     const std::uint8_t* from, std::int64_t pitch, std::uint8_t* to, int lines,
                     int count) {
  const bool columns = along == Along::columns;
  const std::int64_t to_pitch = (columns ? count : lines) * kPixel;
  const auto at = [&](std::size_t offset) {
    return reinterpret_cast<const std::int32_t*>(table + offset);
  };
  return {.from = from,
          .from_line = columns ? pitch : kPixel,
          .from_step = columns ? kPixel : pitch,
          .to = to,
          .to_line = columns ? to_pitch : kPixel,
          .to_step = columns ? kPixel : to_pitch,
          .lines = lines,
          .count = count,
          .first = at(taps.first),
          .begin = at(taps.begin),
          .weights = at(taps.weights)};
}

}  // namespace

void check_units(int result) {
  if (result == cudaSuccess) return;
  throw Error(
      ErrorKind::again,
      fmt::format("the GPU's JPEG units: {}", cudaGetErrorString(static_cast<cudaError_t>(result))),
      "see the log for an earlier error of the device");
}

GrowingMemory::~GrowingMemory() {
  for (void* piece : pieces_) (void)(where_ == Where::host ? cudaFreeHost(piece) : cudaFree(piece));
}

std::uint8_t* GrowingMemory::of(std::size_t bytes) {
  if (bytes > size_ || pieces_.empty()) {
    const std::size_t size = std::max(bytes, 2 * size_);
    void* piece = nullptr;
    check_units(where_ == Where::host ? cudaMallocHost(&piece, size) : cudaMalloc(&piece, size));
    pieces_.push_back(piece);
    size_ = size;
  }
  return static_cast<std::uint8_t*>(pieces_.back());
}

void PartResize::enqueue(std::span<const DevicePart> parts, Interpolation filter, void* stream) {
  auto* const on = static_cast<cudaStream_t>(stream);
  std::vector<ResizePlan> plans;
  std::vector<TapsPlace> columns, rows;
  std::vector<std::size_t> between_at, square_at;
  Places tables, between, squares;
  for (const DevicePart& part : parts) {
    const ResizePlan& plan =
        plans.emplace_back(plan_resize(part.width, part.height, part.axes, filter));
    columns.push_back(place_of(plan.columns, tables));
    rows.push_back(place_of(plan.rows, tables));
    const std::size_t across = plan.rows_first ? to_index(part.width) : plan.columns.size();
    const std::size_t down = plan.rows_first ? plan.rows.size() : to_index(part.height);
    between_at.push_back(between.add(across * down * kPixel));
    square_at.push_back(squares.add(part.pixels.size()));
  }
  const std::size_t passes_at = tables.add(2 * parts.size() * sizeof(ResizePass));
  std::uint8_t* const table = tables_.of(tables.end());
  std::uint8_t* const host = staged_.of(tables.end());
  std::uint8_t* const middle = between_.of(between.end());
  std::uint8_t* const made = squares_.of(squares.end());

  std::vector<ResizePass> passes(2 * parts.size());
  std::int64_t max = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const DevicePart& part = parts[i];
    const ResizePlan& plan = plans[i];
    const int across = part.axes.columns.count, down = part.axes.rows.count;
    put(plan.columns, columns[i], host);
    put(plan.rows, rows[i], host);
    const auto by_columns = [&](const std::uint8_t* from, std::int64_t pitch, std::uint8_t* to,
                                int lines) {
      return make_pass(Along::columns, columns[i], table, from, pitch, to, lines, across);
    };
    const auto by_rows = [&](const std::uint8_t* from, std::int64_t pitch, std::uint8_t* to,
                             int lines) {
      return make_pass(Along::rows, rows[i], table, from, pitch, to, lines, down);
    };
    std::uint8_t *const halfway = middle + between_at[i], *const square = made + square_at[i];
    ResizePass &first = passes[i], &second = passes[parts.size() + i];
    if (plan.rows_first) {
      first = by_rows(part.from, part.pitch, halfway, part.width);
      second = by_columns(halfway, part.width * kPixel, square, down);
    } else {
      first = by_columns(part.from, part.pitch, halfway, part.height);
      second = by_rows(halfway, across * kPixel, square, across);
    }
    for (const ResizePass* pass : {&first, &second})
      max = std::max(max, std::int64_t{pass->lines} * pass->count);
  }
  put(std::span<const ResizePass>(passes), host + passes_at);
  check_units(cudaMemcpyAsync(table, host, tables.end(), cudaMemcpyHostToDevice, on));
  const auto* const all = reinterpret_cast<const ResizePass*>(table + passes_at);
  kernels::cuda::resize_passes({all, parts.size()}, max, stream);
  kernels::cuda::resize_passes({all + parts.size(), parts.size()}, max, stream);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    check_units(cudaMemcpyAsync(parts[i].pixels.data(), made + square_at[i], parts[i].pixels.size(),
                                cudaMemcpyDeviceToHost, on));
  }
}

}  // namespace dstrain
