#include "engine/data/images/pack_source.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>

namespace dstrain {

std::string size_and_time(const std::filesystem::path& file) {
  struct stat status {};
  // One that cannot be looked up is named when it is read.
  if (::stat(file.c_str(), &status) != 0) status = {};
  return fmt::format("{} {}.{}", status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
}

std::string ListSource::made_from() const {
  std::string text;
  std::int32_t last = -1;
  const auto add = [&](const std::string& file, int label) {
    text += fmt::format("{} {} {}\n", file, label, size_and_time(list_.root / file));
  };
  for (const auto& item : list_.items) {
    if (item.archive >= 0) {
      const std::filesystem::path archive = list_.path(item, 0);
      if (item.archive != last)
        text += fmt::format("{} {}\n", archive.string(), size_and_time(archive));
      last = item.archive;
      text += fmt::format("{} {} {}\n", item.offset, item.bytes, item.label);
      continue;
    }
    if (item.frames.empty()) add(item.file, item.label);
    for (const std::string& frame : item.frames) add(frame, item.label);
  }
  return text;
}

std::size_t ListSource::advance(std::size_t max) {
  first_ += taken_;
  taken_ = std::min(max, list_.items.size() - first_);
  return taken_;
}

ImagePart ListSource::image(std::size_t at, int frame, const DecodeRequest& request,
                            std::string& file) const {
  return list_.decode(item(at), frame, request, &file);
}

}  // namespace dstrain
