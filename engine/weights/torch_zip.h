#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "engine/base/unique_fd.h"
#include "engine/weights/pickle.h"

namespace dstrain {

/// A file from which parts are read where they lie; from several threads, too.
class PartFile {
 public:
  explicit PartFile(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }
  /// Fills `out` from byte `offset`. Error{data} names the file where it ends before.
  void read(std::uint64_t offset, std::span<std::byte> out) const;
  /// From now on the file is opened for each read: a checkpoint may have more files than a process
  /// may hold open.
  void close() { fd_.reset(); }
  /// The kernel may begin to read that part.
  void will_read(std::uint64_t offset, std::uint64_t bytes) const;

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
  std::uint64_t size_ = 0;
};

/// A file of torch.save since PyTorch 1.6, or such a file inside another: a zip of stored records
/// (APPNOTE.TXT 4.3 of PKWARE, with zip64), of which data.pkl is the pickle and data/KEY are the
/// numbers of storages. Nothing is executed, extracted or decompressed. Error{data} names the file
/// and what is wrong; of a file of before, or a compressed one, with the line of Python that writes
/// it anew.
class TorchZip {
 public:
  explicit TorchZip(const std::filesystem::path& path);
  /// The zip in bytes [offset, offset + bytes) of `file`.
  TorchZip(std::shared_ptr<PartFile> file, std::uint64_t offset, std::uint64_t bytes);

  /// What data.pkl describes.
  [[nodiscard]] const PickleValue& root() const { return pickle_->root(); }
  [[nodiscard]] const std::shared_ptr<PartFile>& file() const { return file_; }
  [[nodiscard]] const std::filesystem::path& path() const { return file_->path(); }

  /// What its records stand under: the name that the file had when torch.save wrote it, without its
  /// extension, or "archive" where it wrote to a stream.
  [[nodiscard]] const std::string& archive() const { return archive_; }

  struct Place {
    std::uint64_t offset = 0;  ///< bytes from the start of the file
    std::uint64_t bytes = 0;
  };
  /// Where the numbers of a storage lie. Error{data} when the record is missing or shorter than the
  /// storage.
  [[nodiscard]] Place storage(const PickleStorage& storage) const;

 private:
  void read_records();
  /// In errors.
  [[nodiscard]] std::string name() const;
  [[noreturn]] void fail(const std::string& what) const;

  std::shared_ptr<PartFile> file_;
  std::uint64_t begin_ = 0, end_ = 0;     ///< of the zip, bytes in the file
  std::string archive_;
  std::map<std::string, Place> records_;  ///< without the name of the archive in front
  std::optional<Pickle> pickle_;
};

}  // namespace dstrain
