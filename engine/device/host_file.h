#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "engine/base/unique_fd.h"
#include "engine/base/units.h"

namespace dstrain {

/// Disk space of a fixed size without a name, so that nothing is left behind whatever ends the
/// process. All of it is allocated at construction: no write can find the disk full. Goes past the
/// page cache (O_DIRECT) where the file system can; quickest when offset, length and address are
/// multiples of kAlignment, right for any.
class HostFile {
 public:
  static constexpr Bytes kAlignment = 4096;
  static constexpr Bytes kPiece = Bytes{8} << 20;  ///< at most, of one call of the system

  struct Options {
    bool direct = true;   ///< past the page cache where the file system can
    bool tmpfile = true;  ///< O_TMPFILE where the file system has it, else a name for a moment
  };

  /// Error{usage} when `directory` is missing, no directory, read-only, forbidden or in memory
  /// (tmpfs); Error{checkpoint} when the disk has no room or fails. Each names path and cure.
  HostFile(std::filesystem::path directory, Bytes bytes, Options options);
  HostFile(std::filesystem::path directory, Bytes bytes);
  HostFile(const HostFile&) = delete;
  HostFile& operator=(const HostFile&) = delete;

  [[nodiscard]] Bytes size() const { return size_; }
  /// Reads and writes go past the page cache.
  [[nodiscard]] bool direct() const { return direct_; }
  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }
  /// For tests, which break it.
  [[nodiscard]] int descriptor() const { return file_.get(); }

  /// Both may be called by many threads at once, for ranges that no other thread writes meanwhile;
  /// never-written bytes are 0. Error{checkpoint} with directory, offset and cause when the disk
  /// fails or answers short.
  void read(Bytes offset, std::span<std::byte> into) const;
  void write(Bytes offset, std::span<const std::byte> from);

 private:
  struct FreeBuffer {
    void operator()(std::byte* buffer) const;
  };
  using Buffer = std::unique_ptr<std::byte, FreeBuffer>;

  void allocate(Bytes bytes);
  void choose_direct();
  void require_inside(Bytes offset, std::size_t bytes) const;
  void read_piece(Bytes offset, std::span<std::byte> into) const;
  void write_piece(Bytes offset, std::span<const std::byte> from) const;
  void read_blocks(Bytes offset, std::byte* into, Bytes bytes) const;
  void write_blocks(Bytes offset, const std::byte* from, Bytes bytes) const;
  [[nodiscard]] Bytes whole_blocks(Bytes answered, Bytes wanted) const;
  [[nodiscard]] Buffer take_buffer() const;
  void give_back(Buffer buffer) const;
  [[noreturn]] void fail(const char* verb, Bytes offset, Bytes bytes, int error) const;

  std::filesystem::path directory_;
  Bytes size_ = 0;
  bool direct_ = false;
  UniqueFd file_;
  mutable std::mutex edges_;  ///< held while a block is changed in part
  mutable std::mutex buffers_mutex_;
  mutable std::vector<Buffer> buffers_;  ///< aligned ones of kPiece, unused
};

}  // namespace dstrain
