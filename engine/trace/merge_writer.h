#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/trace/scanner.h"

namespace dstrain::trace {

/// Writes one file of the events of many ranks, rank after rank.
class MergeWriter {
 public:
  virtual ~MergeWriter() = default;
  virtual void begin_rank(int rank) = 0;
  /// `start_ns`: in common time.
  virtual void write(const Event& event, std::int64_t start_ns) = 0;
  virtual void end_rank() = 0;
  /// Returns the bytes on disk. Error{checkpoint} as OutputFile's.
  virtual std::uint64_t close() = 0;
  [[nodiscard]] std::uint64_t slices() const { return slices_; }      ///< events with a duration
  [[nodiscard]] std::uint64_t left_out() const { return left_out_; }  ///< kinds it cannot write

 protected:
  std::uint64_t slices_ = 0;
  std::uint64_t left_out_ = 0;
};

/// Chrome's trace format; gzip where the name ends in .gz. Times count from `base_ns`.
[[nodiscard]] std::unique_ptr<MergeWriter> make_json_writer(const std::filesystem::path& path,
                                                            std::int64_t base_ns,
                                                            const std::vector<int>& ranks);
/// Perfetto's own format. One rank at a time is held and sorted: Error{usage} where that takes more
/// than `memory_bytes`.
[[nodiscard]] std::unique_ptr<MergeWriter> make_perfetto_writer(const std::filesystem::path& path,
                                                                std::int64_t memory_bytes);

/// Kernels, copies, fills and waits: what a stream does one after the other.
[[nodiscard]] bool is_stream_work(std::string_view category);
/// These, and rows and counters that belong to the device.
[[nodiscard]] bool is_of_device(const Event& event);

/// The id of one rank's flow or launch, which no other rank has: rank x 2^32 + id.
[[nodiscard]] std::uint64_t id_of_rank(int rank, std::int64_t id);

}  // namespace dstrain::trace
