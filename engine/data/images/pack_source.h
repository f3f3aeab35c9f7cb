#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/data/formats.h"
#include "engine/data/images/image_decode.h"

namespace dstrain {

/// The samples that a packed file is made of, which are read once and in their order.
class PackSource {
 public:
  virtual ~PackSource() = default;
  /// All that the images depend on: files with sizes and times, labels. Known without reading them.
  [[nodiscard]] virtual std::string made_from() const = 0;
  [[nodiscard]] virtual std::string place() const = 0;  ///< for messages
  [[nodiscard]] virtual int classes() const = 0;
  [[nodiscard]] virtual int frames() const { return 1; }
  /// Called once, before the first advance(); how many samples there are.
  [[nodiscard]] virtual std::int64_t open() = 0;
  /// Takes in the next samples, at most so many, in the place of those before; how many.
  virtual std::size_t advance(std::size_t max) = 0;
  /// An image of sample `at` of those taken in, and its bytes where it is a file. Several threads
  /// call it at once. Error{data} names file and record.
  [[nodiscard]] virtual ImagePart image(std::size_t at, int frame, const DecodeRequest& request,
                                        std::string& file) const = 0;
  /// Likewise.
  [[nodiscard]] virtual int label(std::size_t at) const = 0;
};

/// "SIZE SECONDS.NANOSECONDS" of a file, zeros where it cannot be looked up.
[[nodiscard]] std::string size_and_time(const std::filesystem::path& file);

/// Files of images. `list` outlives it.
class ListSource final : public PackSource {
 public:
  explicit ListSource(const formats::ImageList& list) : list_(list) {}
  [[nodiscard]] std::string made_from() const override;
  [[nodiscard]] std::string place() const override { return list_.root.string(); }
  [[nodiscard]] int classes() const override { return list_.classes; }
  [[nodiscard]] int frames() const override { return list_.frames; }
  [[nodiscard]] std::int64_t open() override { return std::ssize(list_.items); }
  std::size_t advance(std::size_t max) override;
  [[nodiscard]] ImagePart image(std::size_t at, int frame, const DecodeRequest& request,
                                std::string& file) const override;
  [[nodiscard]] int label(std::size_t at) const override { return item(at).label; }

 private:
  [[nodiscard]] const formats::ImageList::Item& item(std::size_t at) const {
    return list_.items.at(first_ + at);
  }

  const formats::ImageList& list_;
  std::size_t first_ = 0, taken_ = 0;
};

}  // namespace dstrain
