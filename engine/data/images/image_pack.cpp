#include "engine/data/images/image_pack.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <optional>
#include <thread>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/units.h"
#include "engine/data/images/image_resize.h"
#include "engine/data/images/jpeg_decode.h"
#include "engine/data/text/build_lock.h"
#include "engine/data/text/hash.h"
#include "engine/data/text/token_cache.h"
#include "engine/recipe/choices.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// Raised whenever the same files and options give another packed file.
constexpr int kPackFormat = 1;
constexpr int kQuality = 95;
/// Items that a thread decodes before the finished ones are written.
constexpr std::size_t kItemsPerThread = 32;

/// Everything that the packed images depend on.
std::string key_of_pack(const formats::ImageList& list, const DataConfig& data, int side) {
  std::string key =
      fmt::format("{}\n{} {} {} {} {} {}\n", kPackFormat, spelling(data.name), spelling(data.pack),
                  side, spelling(data.interpolation), list.classes, list.frames);
  const auto add = [&](const std::string& file, int label) {
    struct stat status {};
    // One that cannot be looked up is named when it is read.
    if (::stat((list.root / file).c_str(), &status) != 0) status = {};
    key += fmt::format("{} {} {} {}.{}\n", file, label, status.st_size, status.st_mtim.tv_sec,
                       status.st_mtim.tv_nsec);
  };
  for (const auto& item : list.items) {
    if (item.frames.empty()) add(item.file, item.label);
    for (const std::string& frame : item.frames) add(frame, item.label);
  }
  return text::hash128(key);
}

struct Packed {
  std::string bytes = {};
  int width = 0, height = 0;
};

/// The image with its shorter side reduced to `side`; a smaller one stays as it is.
RgbImage reduced(RgbImage image, int side, Interpolation filter) {
  const int shorter = std::min(image.width, image.height);
  if (shorter <= side) return image;
  const auto resized = [&](int length) {
    return static_cast<int>(std::int64_t{side} * length / shorter);
  };
  RgbImage small{resized(image.width), resized(image.height), {}};
  small.pixels.resize(static_cast<std::size_t>(small.width) *
                      static_cast<std::size_t>(small.height) * 3);
  const auto axis = [](int from, int to) {
    return AxisResize{.extent = static_cast<double>(from), .resized = to, .count = to};
  };
  resize_image({image.pixels, image.width, image.height},
               {axis(image.width, small.width), axis(image.height, small.height)}, filter,
               small.pixels);
  return small;
}

Packed pack_image(const formats::ImageList& list, const formats::ImageList::Item& item, int frame,
                  const DataConfig& data, int side, std::mutex& large) {
  const DecodeRequest request = {.large = &large};
  std::string file;
  RgbImage image = list.decode(item, frame, request, &file).image;
  const bool keep = std::min(image.width, image.height) <= side && data.pack == Pack::jpeg &&
                    file.starts_with("\xff\xd8");
  Packed packed{.width = image.width, .height = image.height};
  if (keep) {
    packed.bytes = std::move(file);
    return packed;
  }
  image = reduced(std::move(image), side, data.interpolation);
  packed.width = image.width;
  packed.height = image.height;
  packed.bytes = data.pack == Pack::jpeg ? encode_jpeg(image, kQuality)
                                         : std::string(image.pixels.begin(), image.pixels.end());
  return packed;
}

/// Result for one item: its images, or why it has none.
struct Result {
  std::vector<Packed> images;
  std::optional<Error> problem;
  std::exception_ptr failure;
};

class Packer {
 public:
  Packer(const formats::ImageList& list, const DataConfig& data, int side)
      : list_(list), data_(data), side_(side) {}

  template <class Tell>
  void run(PackWriter& writer, const Tell& tell) {
    const std::size_t threads = std::max(1U, std::thread::hardware_concurrency());
    std::vector<Result> results(threads * kItemsPerThread);
    for (std::size_t first = 0; first < list_.items.size(); first += results.size()) {
      const std::size_t count = std::min(results.size(), list_.items.size() - first);
      std::atomic<std::size_t> next{0};
      {
        std::vector<std::jthread> workers;
        for (std::size_t i = 0; i < std::min(threads, count); ++i) {
          workers.emplace_back([&] {
            for (std::size_t at = next++; at < count; at = next++)
              results[at] = pack(list_.items[first + at]);
          });
        }
      }
      for (std::size_t at = 0; at < count; ++at)
        write(writer, list_.items[first + at], results[at]);
      tell(first + count, writer.bytes());
    }
  }

 private:
  Result pack(const formats::ImageList::Item& item) {
    Result result;
    try {
      for (int frame = 0; frame < list_.frames; ++frame)
        result.images.push_back(pack_image(list_, item, frame, data_, side_, large_));
    } catch (const Error& error) {
      result.problem = error;
    } catch (...) {
      result.failure = std::current_exception();
    }
    return result;
  }

  void write(PackWriter& writer, const formats::ImageList::Item& item, const Result& result) const {
    if (result.failure) std::rethrow_exception(result.failure);
    if (result.problem) {
      if (data_.bad_record == BadRecord::stop || result.problem->kind() != ErrorKind::data)
        throw *result.problem;
      return writer.leave_out(result.problem->what());
    }
    for (const Packed& image : result.images)
      writer.add(image.bytes, image.width, image.height, item.label);
  }

  const formats::ImageList& list_;
  const DataConfig& data_;
  int side_;
  std::mutex large_;
};

void name_left_out(const PackedImages& pack, ProgressSink& progress) {
  for (const std::string& problem : pack.problems())
    progress.note(fmt::format("left out: {}", problem));
  const auto named = static_cast<std::int64_t>(pack.problems().size());
  if (pack.left_out() > named)
    progress.note(fmt::format("left out: {} more", pack.left_out() - named));
}

}  // namespace

std::shared_ptr<const PackedImages> open_pack(const formats::ImageList& list,
                                              const DataConfig& data, Split split, int side,
                                              ProgressSink* progress) {
  const fs::path folder = text::make_cache_folder(data, "images");
  const char* part = split == Split::train ? "train" : "test";
  const std::string made_from = key_of_pack(list, data, side);
  const text::KeyField key = text::key_field(made_from);
  const fs::path path = folder / fmt::format("{}-{}-{}.{}", spelling(data.name), part, made_from,
                                             spelling(data.pack));
  std::string problem;
  std::shared_ptr<const PackedImages> pack = PackedImages::open(path, key, problem);
  if (pack == nullptr) {
    const text::BuildLock lock(path.string() + ".lock",
                               fmt::format("packing {} images", list.items.size()), progress);
    pack = PackedImages::open(path, key, problem);
    if (pack == nullptr) {
      if (progress != nullptr && path_exists(path))
        progress->note(fmt::format("{} is made again: {}", path.string(), problem));
      if (lock.held()) text::BuildFile::remove_leftovers(path);
      const auto begin = std::chrono::steady_clock::now();
      PackWriter writer(path, key, data.pack == Pack::pixels, list.frames, list.classes);
      Packer(list, data, side).run(writer, [&](std::size_t done, std::uint64_t bytes) {
        const double share = static_cast<double>(done) / static_cast<double>(list.items.size());
        const std::string text =
            fmt::format("packing {} images: {} of {}, {}", part, done, list.items.size(),
                        format_bytes(static_cast<Bytes>(bytes)));
        lock.report(share, text);
        if (progress != nullptr) progress->progress(share, text);
      });
      writer.finish();
      pack = PackedImages::open(path, key, problem);
      if (pack == nullptr) {
        throw Error(ErrorKind::usage,
                    fmt::format("{} was just written, yet {}", path.string(), problem),
                    "the disk of data.cache may be failing; name another folder");
      }
      if (progress != nullptr) {
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
        progress->note(fmt::format("packed {} {} samples, {} in {}, kept in {}", pack->size(), part,
                                   format_bytes(static_cast<Bytes>(pack->bytes())),
                                   format_duration(seconds.count()), path.string()));
      }
    }
  }
  if (progress != nullptr) name_left_out(*pack, *progress);
  if (pack->size() == 0) {
    throw Error(ErrorKind::data, fmt::format("{}: none of its {} images can be read",
                                             list.root.string(), list.items.size()));
  }
  return pack;
}

}  // namespace dstrain
