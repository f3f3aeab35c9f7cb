#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/finite.h"
#include "engine/base/index.h"
#include "engine/base/run_layout.h"
#include "engine/base/side_by_side.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checkpoint_boxes.h"
#include "engine/checkpoint/checkpoint_verification.h"

namespace dstrain {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors stores little endian");

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

class Reader final : public CheckpointReader {
 public:
  Reader(const std::filesystem::path& path, bool look_at_files) : directory_(path) {
    const std::filesystem::path manifest_path = path / run_file::kManifest;
    struct stat status {};
    const Descriptor fd(directory_.open(run_file::kManifest, status));
    if (status.st_size > kManifestLimit) {
      throw Error(ErrorKind::checkpoint,
                  fmt::format("{} has {} bytes, a manifest has at most {}", manifest_path.string(),
                              status.st_size, kManifestLimit));
    }
    std::string text(static_cast<std::size_t>(status.st_size), '\0');
    read_exactly(fd.get(), manifest_path, 0, std::as_writable_bytes(std::span(text)));
    boxes_ = std::make_unique<StoredBoxes>(parse_manifest(text, manifest_path.string()),
                                           manifest_path.string());
    const auto name = parse_checkpoint_name(path);
    if (name && *name != state().step) {
      throw Error(ErrorKind::checkpoint, fmt::format("{} is of step {}, not of this directory's",
                                                     manifest_path.string(), state().step));
    }
    if (look_at_files) {
      for (const FileRecord& file : files()) check_size(file, directory_.size_of(file.name));
    }
    for (std::size_t i = 0; i < boxes_->tensors().size(); ++i)
      index_[boxes_->tensors()[i].name] = i;
    verified_ = std::vector<Verified>(files().size());
  }

  void verify_share(int rank, int ranks) const override {
    constexpr std::size_t kMaxThreads = 8;
    const std::size_t first = to_index(rank);
    const std::size_t step = to_index(ranks);
    const std::size_t num_files = files().size();
    std::vector<std::string> problems(first < num_files ? (num_files - first + step - 1) / step
                                                        : 0);
    side_by_side(problems.size(), kMaxThreads, [&](std::size_t file) {
      try {
        const Descriptor fd(open_verified(first + file * step));
      } catch (const std::exception& error) {
        problems[file] = error.what();
      }
    });
    std::erase(problems, "");
    if (problems.empty()) return;
    throw Error(ErrorKind::checkpoint,
                problems.size() == 1
                    ? problems[0]
                    : fmt::format("{} (and {} more files)", problems[0], problems.size() - 1),
                "resume from an older checkpoint; `dstrain checkpoint list` shows them");
  }

  [[nodiscard]] std::int64_t share_bytes(int ranks) const override {
    std::vector<std::int64_t> shares(to_index(ranks));
    for (std::size_t i = 0; i < files().size(); ++i) shares[i % shares.size()] += files()[i].bytes;
    return std::ranges::max(shares);
  }

  [[nodiscard]] const CheckpointState& state() const override { return boxes_->manifest().state; }
  [[nodiscard]] const std::vector<FileRecord>& files() const { return boxes_->manifest().files; }

  [[nodiscard]] std::vector<Piece> tensors() const override {
    std::vector<Piece> tensors;
    for (const StoredTensor& tensor : boxes_->tensors())
      tensors.emplace_back(tensor.name, tensor.shape);
    return tensors;
  }

  void read(const Piece& wanted, std::span<float> out) const override {
    const std::size_t index = find(wanted);
    const StoredTensor& tensor = boxes_->tensors()[index];
    const Piece whole(tensor.name, tensor.shape);
    const auto inside = [](Range part, Range all) {
      return part.begin >= 0 && part.begin <= part.end && part.end <= all.end;
    };
    if (!inside(wanted.rows, whole.rows) || !inside(wanted.columns, whole.columns) ||
        std::cmp_not_equal(wanted.numel(), out.size())) {
      throw Error(ErrorKind::checkpoint,
                  fmt::format("{} of '{}' do not fit {} values of its {} rows and {} columns in {}",
                              box_text(wanted.rows, wanted.columns), wanted.name, out.size(),
                              whole.rows.end, whole.columns.end, directory_.path().string()));
    }
    for (const StoredBox& box : boxes_->boxes(index, wanted.rows)) read_shared(box, wanted, out);
    if (const std::int64_t bad = first_non_finite(out); bad >= 0) {
      throw Error(
          ErrorKind::checkpoint,
          fmt::format("{}: tensor '{}' holds {} at element {}", directory_.path().string(),
                      wanted.name, out[static_cast<std::size_t>(bad)], wanted.whole_index(bad)),
          "take an older checkpoint; `dstrain checkpoint list` shows them");
    }
  }

 private:
  /// A file as it was when its hash was right; descriptors are not kept, as there may be thousands
  /// of files.
  struct Verified {
    std::unique_ptr<std::mutex> mutex = std::make_unique<std::mutex>();
    bool done = false;
    struct stat status {};
  };

  /// The part of `wanted` that `box` holds.
  void read_shared(const StoredBox& box, const Piece& wanted, std::span<float> out) const {
    const Range rows = intersect(box.rows, wanted.rows);
    const Range columns = intersect(box.columns, wanted.columns);
    if (rows.empty() || columns.empty()) return;
    // Rows that follow one another without a gap both in the file and in `out` are read at once.
    const bool solid = box.columns == wanted.columns;
    const std::int64_t step = solid ? rows.size() : 1;
    const Descriptor fd(open_verified(box.file));
    const std::filesystem::path path = path_of(box.file);
    for (std::int64_t row = rows.begin; row < rows.end; row += step) {
      const std::int64_t from =
          (row - box.rows.begin) * box.columns.size() + columns.begin - box.columns.begin;
      const std::int64_t to =
          (row - wanted.rows.begin) * wanted.columns.size() + columns.begin - wanted.columns.begin;
      read_exactly(
          fd.get(), path, box.offset + 4 * from,
          std::as_writable_bytes(out.subspan(to_index(to), to_index(step * columns.size()))));
    }
  }

  [[nodiscard]] std::filesystem::path path_of(std::size_t file) const {
    return directory_.path() / files()[file].name;
  }

  void check_size(const FileRecord& file, std::int64_t bytes) const {
    if (bytes == file.bytes) return;
    throw Error(ErrorKind::checkpoint,
                fmt::format("{} has {} bytes, the manifest says {}",
                            (directory_.path() / file.name).string(), bytes, file.bytes));
  }

  /// Its number among the tensors.
  [[nodiscard]] std::size_t find(const Piece& wanted) const {
    const auto found = index_.find(wanted.name);
    if (found == index_.end()) {
      throw Error(ErrorKind::checkpoint,
                  fmt::format("{} has no tensor '{}'", directory_.path().string(), wanted.name),
                  "the checkpoint was saved by a run with another model or optimizer");
    }
    const StoredTensor& tensor = boxes_->tensors()[found->second];
    if (tensor.shape != wanted.shape) {
      throw Error(ErrorKind::checkpoint,
                  fmt::format("'{}' has shape [{}] in {}, this run wants [{}]", wanted.name,
                              fmt::join(tensor.shape, ", "), directory_.path().string(),
                              fmt::join(wanted.shape, ", ")),
                  "the checkpoint was saved by a run with another model");
    }
    return found->second;
  }

  /// Opens a file and hashes it unless that was done before and the file is still the same.
  [[nodiscard]] int open_verified(std::size_t index) const {
    const FileRecord& file = files()[index];
    Verified& verified = verified_[index];
    const std::scoped_lock lock(*verified.mutex);
    struct stat status {};
    const int fd = directory_.open(file.name, status);
    try {
      check_size(file, status.st_size);
      if (!verified.done || !same(verified.status, status)) {
        check_hash(fd, index);
        verified.done = true;
        verified.status = status;
      }
    } catch (...) {
      ::close(fd);
      throw;
    }
    return fd;
  }

  static bool same(const struct stat& a, const struct stat& b) {
    return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_mtim.tv_sec == b.st_mtim.tv_sec &&
           a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
  }

  void check_hash(int fd, std::size_t index) const {
    const FileRecord& file = files()[index];
    std::vector<std::byte> chunk(static_cast<std::size_t>(
        std::min<std::int64_t>(file.bytes, std::int64_t{kCheckpointChunk})));
    FileHash hash;
    for (std::int64_t done = 0; done < file.bytes;) {
      const auto now = std::span(chunk).first(static_cast<std::size_t>(
          std::min<std::int64_t>(file.bytes - done, std::int64_t{kCheckpointChunk})));
      read_exactly(fd, path_of(index), done, now);
      hash.update(now);
      done += static_cast<std::int64_t>(now.size());
    }
    if (hash.hex() == file.hash) return;
    throw Error(ErrorKind::checkpoint,
                fmt::format("{} of {} bytes is changed: hash {}, the manifest says {}",
                            path_of(index).string(), file.bytes, hash.hex(), file.hash));
  }

  CheckpointDirectory directory_;
  std::unique_ptr<StoredBoxes> boxes_;
  std::map<std::string, std::size_t> index_;
  mutable std::vector<Verified> verified_;
};

std::unique_ptr<Reader> open_reader(const std::filesystem::path& path, bool verify) {
  auto reader = std::make_unique<Reader>(path, /*look_at_files=*/true);
  if (verify) reader->verify_share(0, 1);
  return reader;
}

}  // namespace

std::unique_ptr<CheckpointReader> CheckpointReader::open(const std::filesystem::path& path,
                                                         bool verify) {
  return open_reader(path, verify);
}

std::unique_ptr<CheckpointReader> CheckpointReader::open_manifest(
    const std::filesystem::path& path) {
  return std::make_unique<Reader>(path, /*look_at_files=*/false);
}

CheckpointInfo inspect_checkpoint(const std::filesystem::path& path, bool full) {
  CheckpointInfo info;
  info.path = path;
  info.step = parse_checkpoint_name(path).value_or(-1);
  try {
    const auto reader = open_reader(path, full);
    info.step = reader->state().step;
    info.world_size = reader->state().world_size;
    for (const FileRecord& file : reader->files()) info.bytes += file.bytes;
    info.files = static_cast<int>(reader->files().size());
    info.valid = true;
    if (const auto record = read_verification(path)) {
      info.verified = record->damaged.empty();
      info.damage = fmt::format("{}", fmt::join(record->damaged, "; "));
    }
  } catch (const std::exception& error) {
    info.problem = error.what();
  }
  return info;
}

}  // namespace dstrain
