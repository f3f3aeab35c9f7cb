#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/file.h"
#include "engine/data/images/image_decode.h"
#include "engine/data/text/build_file.h"
#include "engine/data/text/hash.h"

namespace dstrain {

/// Little-endian; then the images, each as a JPEG file or as pixels [height, width, 3], the index
/// (`images` times PackedImages::Entry) and the list of what was left out, a line each.
struct PackHeader {
  static constexpr std::uint64_t kMagic = 0x32676d6972747364;  // "dstrimg2"

  std::uint64_t magic = kMagic;
  text::KeyField key{};   ///< of what the images were made from
  std::uint64_t raw = 0;  ///< 1: pixels, 0: JPEG files
  std::uint64_t images = 0;
  std::uint64_t frames = 1;  ///< images of a sample, which follow one another
  std::uint64_t classes = 0;
  std::uint64_t index_at = 0;
  std::uint64_t left_out = 0;     ///< samples that could not be read
  std::uint64_t list_bytes = 0;   ///< of the list of these
  std::uint64_t index_hash = 0;   ///< XXH3 of index and list
  std::uint64_t header_hash = 0;  ///< XXH3 of what stands before it
};

/// Images of a data set in one file, memory-mapped. Any thread may read.
class PackedImages {
 public:
  struct Entry {
    std::uint64_t offset = 0, bytes = 0;
    std::uint32_t width = 0, height = 0, label = 0, unused = 0;
    std::uint64_t hash = 0;  ///< XXH3 of the bytes
  };

  /// Checks key, sizes, header and index; `problem` says why there is no such file or why it cannot
  /// be used. An image's own hash is checked when it is read for the first time.
  static std::unique_ptr<PackedImages> open(const std::filesystem::path& path,
                                            const text::KeyField& key, std::string& problem);

  [[nodiscard]] std::int64_t size() const {
    return static_cast<std::int64_t>(header_.images / header_.frames);
  }
  [[nodiscard]] int classes() const { return static_cast<int>(header_.classes); }
  [[nodiscard]] std::int64_t left_out() const {
    return static_cast<std::int64_t>(header_.left_out);
  }
  /// The first of the messages about what was left out.
  [[nodiscard]] const std::vector<std::string>& problems() const { return problems_; }
  [[nodiscard]] std::uint64_t bytes() const { return file_.bytes().size(); }
  [[nodiscard]] int label(std::int64_t sample) const;
  /// Reads an image's bytes without decoding them; checks their hash when it is the first time.
  [[nodiscard]] std::int64_t stored_bytes(std::int64_t sample, int frame) const;
  /// The image's file; nothing where pixels are packed. Checks as stored_bytes() does.
  [[nodiscard]] std::optional<std::string_view> file(std::int64_t sample, int frame) const;
  /// Error{data} for an image that is not what was written: the file itself is damaged.
  [[nodiscard]] ImagePart decode(std::int64_t sample, int frame,
                                 const DecodeRequest& request) const;

 private:
  explicit PackedImages(const std::filesystem::path& path) : path_(path), file_(path) {}
  std::string check(const text::KeyField& key);
  [[nodiscard]] std::span<const std::byte> checked_bytes(const Entry& entry) const;
  [[nodiscard]] const Entry& entry(std::int64_t sample, int frame) const;

  std::filesystem::path path_;
  MappedFile file_;
  PackHeader header_;
  std::span<const Entry> index_;
  std::vector<std::string> problems_;
  mutable std::vector<std::atomic<bool>> checked_;  ///< by image
};

/// Writes a packed file image by image; it appears at `path` in finish().
class PackWriter {
 public:
  PackWriter(const std::filesystem::path& path, const text::KeyField& key, bool raw, int frames,
             int classes);
  void add(std::string_view bytes, int width, int height, int label);
  void leave_out(const std::string& why);
  [[nodiscard]] std::uint64_t bytes() const { return file_.size(); }
  void finish();

 private:
  text::BuildFile file_;
  PackHeader header_;
  std::vector<PackedImages::Entry> index_;
  std::string list_;
};

}  // namespace dstrain
