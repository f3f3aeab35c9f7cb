#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace dstrain {

/// Files of a checkpoint: written once and hashed on the way, opened without following links.

inline constexpr std::size_t kCheckpointChunk = std::size_t{16} << 20;  ///< bytes per read or write

/// Streaming xxh3-128.
class FileHash {
 public:
  FileHash();
  ~FileHash();
  FileHash(FileHash&&) noexcept;
  FileHash& operator=(FileHash&&) noexcept;

  void update(std::span<const std::byte> bytes);
  [[nodiscard]] std::string hex()
      const;  ///< 32 digits, most significant first, as `xxh128sum` prints it

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// FileHash::hex() of a text.
[[nodiscard]] std::string text_hash(std::string_view text);

/// What the manifest says about a file.
struct FileRecord {
  std::string name;  ///< plain, relative to the checkpoint
  std::int64_t bytes = 0;
  std::string hash;
};

/// A new file that must not exist yet. Error{checkpoint} names path, bytes written so far and the
/// system's reason.
class ExclusiveFile {
 public:
  explicit ExclusiveFile(std::filesystem::path path);
  ~ExclusiveFile();
  ExclusiveFile(const ExclusiveFile&) = delete;
  ExclusiveFile& operator=(const ExclusiveFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  /// fsync and close, both checked.
  [[nodiscard]] FileRecord finish();

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  std::int64_t bytes_ = 0;
  FileHash hash_;
};

/// A directory whose files are opened relative to it, so that none outside can be reached.
class CheckpointDirectory {
 public:
  explicit CheckpointDirectory(std::filesystem::path path);
  ~CheckpointDirectory();
  CheckpointDirectory(const CheckpointDirectory&) = delete;
  CheckpointDirectory& operator=(const CheckpointDirectory&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Size of a regular file that is no link; Error{checkpoint} otherwise.
  [[nodiscard]] std::int64_t size_of(const std::string& name) const;
  /// Descriptor of such a file, to be closed by the caller.
  [[nodiscard]] int open(const std::string& name, struct stat& status) const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

/// Fills `out` from `offset` of the file; Error{checkpoint} naming `path` when it ends before.
void read_exactly(int fd, const std::filesystem::path& path, std::int64_t offset,
                  std::span<std::byte> out);

}  // namespace dstrain
