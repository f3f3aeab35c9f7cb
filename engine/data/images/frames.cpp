#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/data/formats.h"
#include "engine/data/images/image_listing.h"
#include "engine/data/text/progress_sink.h"

namespace dstrain::formats {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxNamedClips = 10;

/// Numbers in names compare as numbers, so that frame 10 follows frame 9.
bool by_number(const std::string& a, const std::string& b) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (!digit(a[i]) || !digit(b[j])) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
      continue;
    }
    const auto number = [&](const std::string& text, std::size_t& at) {
      while (at + 1 < text.size() && text[at] == '0' && digit(text[at + 1])) ++at;
      const std::size_t begin = at;
      while (at < text.size() && digit(text[at])) ++at;
      return std::string_view(text).substr(begin, at - begin);
    };
    const std::string_view x = number(a, i), y = number(b, j);
    if (x.size() != y.size()) return x.size() < y.size();
    if (x != y) return x < y;
  }
  return a.size() - i < b.size() - j;
}

/// ROOT/train/CLASS/CLIP and ROOT/test/CLASS/CLIP: the training folder says which classes there
/// are. What is too short is named in `too_short`.
ImageList list_clip_folders(const fs::path& root, Split split, int frames,
                            std::vector<std::string>& too_short) {
  if (path_kind(root / "train") != PathKind::folder) {
    throw Error(ErrorKind::data, fmt::format("{} has no folder 'train'", root.string()),
                "expected ROOT/train/CLASS/CLIP/*.jpg and ROOT/test/CLASS/CLIP/*.jpg");
  }
  const auto classes = list_classes(root / "train");
  const fs::path folder = split == Split::train
                              ? root / "train"
                              : find_test_folder(root, "put the test clips into ROOT/test/CLASS/");
  ImageList list{.root = folder,
                 .classes = static_cast<int>(classes.size()),
                 .frames = frames,
                 .class_names = classes};
  for (const auto& [name, label] : labelled_folders(root / "train", classes, folder)) {
    const auto clips = list_clips(folder, name);
    if (clips.empty() && split == Split::train) {
      throw Error(
          ErrorKind::data,
          fmt::format("{} holds no folder; it needs one per clip", (folder / name).string()),
          "expected ROOT/train/CLASS/CLIP/*.jpg");
    }
    for (const std::string& clip : clips) {
      std::vector<std::string> files = list_images(folder, clip, list.others);
      std::ranges::sort(files, by_number);
      const auto found = static_cast<std::int64_t>(files.size());
      if (found < frames) {
        too_short.push_back(fmt::format("{}: {} frames, data.frames takes {}",
                                        (folder / clip).string(), found, frames));
        continue;
      }
      // The middles of as many equal parts.
      std::vector<std::string> taken;
      for (std::int64_t i = 0; i < frames; ++i)
        taken.push_back(files[static_cast<std::size_t>((2 * i + 1) * found / (2 * frames))]);
      list.items.push_back({clip, label, std::move(taken)});
    }
  }
  return list;
}

constexpr const char* kShortHint =
    "lower data.frames, or take the clip out; data.bad_record: skip leaves it out";

ImageList list_clips_of(const DataConfig& data, const fs::path& root, Split split,
                        ProgressSink* progress) {
  std::vector<std::string> too_short;
  ImageList list;
  try {
    list = list_clip_folders(root, split, data.frames, too_short);
  } catch (const fs::filesystem_error& error) {
    throw Error(ErrorKind::data,
                fmt::format("cannot list {}: {}", error.path1().string(), error.code().message()));
  }
  const bool none = list.items.empty();
  if (!too_short.empty() && (none || data.bad_record == BadRecord::stop))
    throw Error(ErrorKind::data, too_short.front(), kShortHint);
  if (none) throw Error(ErrorKind::data, fmt::format("{} holds no clips", list.root.string()));
  for (std::size_t i = 0; progress != nullptr && i < too_short.size(); ++i) {
    if (i == kMaxNamedClips) {
      progress->note(fmt::format("left out: {} more clips", too_short.size() - i));
      break;
    }
    progress->note(fmt::format("left out: {}", too_short[i]));
  }
  return list;
}

std::unique_ptr<ImageDataset> open_frames(const DataConfig& data, Split split, int image_size,
                                          std::int64_t, ProgressSink* progress) {
  const fs::path root =
      required_folder(data, "the folder with train/CLASS/CLIP and test/CLASS/CLIP");
  return open_image_files(list_clips_of(data, root, split, progress), data, split, image_size,
                          progress);
}

}  // namespace

const ImageFormat kFrames = {
    .name = DatasetName::frames,
    .open = open_frames,
    .shape = square_shape,
    .facts =
        [](const DataConfig& data) {
          if (path_kind(data.path) != PathKind::folder) return DatasetFacts{};
          const ImageList list = list_clips_of(data, data.path, Split::train, nullptr);
          return DatasetFacts{.classes = list.classes,
                              .train_size = static_cast<std::int64_t>(list.items.size())};
        },
};

}  // namespace dstrain::formats
