#include "engine/data/images/image_pack.h"

#include <fmt/format.h>

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
std::string key_of_pack(const PackSource& source, const PackForm& form) {
  const std::string how = form.pack == Pack::none
                              ? std::string("as they are")
                              : fmt::format("{} {} {}", spelling(form.pack), form.side,
                                            spelling(form.data.interpolation));
  return text::hash128(fmt::format("{}\n{} {} {} {}\n{}", kPackFormat, spelling(form.data.name),
                                   how, source.classes(), source.frames(), source.made_from()));
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

/// Whether the image's file becomes part of the pack as it is.
bool keeps_file(const PackForm& form, const RgbImage& image, const std::string& file) {
  if (form.pack == Pack::none) return !file.empty();
  return form.pack == Pack::jpeg && std::min(image.width, image.height) <= form.side &&
         file.starts_with("\xff\xd8");
}

Packed pack_image(const PackSource& source, std::size_t at, int frame, const PackForm& form,
                  std::mutex& large) {
  std::string file;
  RgbImage image = source.image(at, frame, {.large = &large}, file).image;
  Packed packed{.width = image.width, .height = image.height};
  if (keeps_file(form, image, file)) {
    packed.bytes = std::move(file);
    return packed;
  }
  image = reduced(std::move(image), form.side, form.data.interpolation);
  packed.width = image.width;
  packed.height = image.height;
  packed.bytes = form.pack == Pack::jpeg ? encode_jpeg(image, kQuality)
                                         : std::string(image.pixels.begin(), image.pixels.end());
  return packed;
}

/// Result for one sample: its label and images, or why it has none.
struct Result {
  int label = 0;
  std::vector<Packed> images = {};
  std::optional<Error> problem = {};
  std::exception_ptr failure = {};
};

class Packer {
 public:
  Packer(PackSource& source, const PackForm& form) : source_(source), form_(form) {}

  /// `tell` hears how many samples are done.
  template <class Tell>
  void run(PackWriter& writer, const Tell& tell) {
    const std::size_t threads = std::max(1U, std::thread::hardware_concurrency());
    std::vector<Result> results(threads * kItemsPerThread);
    std::int64_t done = 0;
    while (const std::size_t count = source_.advance(results.size())) {
      std::atomic<std::size_t> next{0};
      {
        std::vector<std::jthread> workers;
        for (std::size_t i = 0; i < std::min(threads, count); ++i) {
          workers.emplace_back([&] {
            for (std::size_t at = next++; at < count; at = next++) results[at] = pack(at);
          });
        }
      }
      for (std::size_t at = 0; at < count; ++at) write(writer, results[at]);
      tell(done += static_cast<std::int64_t>(count));
    }
  }

 private:
  Result pack(std::size_t at) {
    Result result;
    try {
      result.label = source_.label(at);
      for (int frame = 0; frame < source_.frames(); ++frame)
        result.images.push_back(pack_image(source_, at, frame, form_, large_));
    } catch (const Error& error) {
      result.problem = error;
    } catch (...) {
      result.failure = std::current_exception();
    }
    return result;
  }

  void write(PackWriter& writer, const Result& result) const {
    if (result.failure) std::rethrow_exception(result.failure);
    if (result.problem) {
      if (form_.data.bad_record == BadRecord::stop || result.problem->kind() != ErrorKind::data)
        throw *result.problem;
      return writer.leave_out(result.problem->what());
    }
    for (const Packed& image : result.images)
      writer.add(image.bytes, image.width, image.height, result.label);
  }

  PackSource& source_;
  const PackForm& form_;
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

std::shared_ptr<const PackedImages> open_pack(PackSource& source, const PackForm& form, Split split,
                                              ProgressSink* progress) {
  const fs::path folder = text::make_cache_folder(form.data, "images");
  const char* part = split == Split::train ? "train" : "test";
  const std::string made_from = key_of_pack(source, form);
  const text::KeyField key = text::key_field(made_from);
  const fs::path path =
      folder / fmt::format("{}-{}-{}.{}", spelling(form.data.name), part, made_from,
                           form.pack == Pack::none ? "files" : spelling(form.pack));
  std::string problem;
  std::shared_ptr<const PackedImages> pack = PackedImages::open(path, key, problem);
  if (pack == nullptr) {
    const text::BuildLock lock(path.string() + ".lock", fmt::format("packing {} images", part),
                               progress);
    pack = PackedImages::open(path, key, problem);
    if (pack == nullptr) {
      if (progress != nullptr && path_exists(path))
        progress->note(fmt::format("{} is made again: {}", path.string(), problem));
      if (lock.held()) text::BuildFile::remove_leftovers(path);
      const auto begin = std::chrono::steady_clock::now();
      PackWriter writer(path, key, form.pack == Pack::pixels, source.frames(), source.classes());
      const std::int64_t samples = source.open();
      Packer(source, form).run(writer, [&](std::int64_t done) {
        const double share = static_cast<double>(done) / static_cast<double>(samples);
        const std::string text = fmt::format("packing {} images: {} of {}, {}", part, done, samples,
                                             format_bytes(static_cast<Bytes>(writer.bytes())));
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
                                             source.place(), pack->left_out()));
  }
  return pack;
}

}  // namespace dstrain
