#include "engine/data/text/sources.h"

#include "engine/base/error.h"
#include "engine/data/text/format.h"

namespace dstrain::text {
namespace {

constexpr const TextFormat* kTextFormats[] = {&kSquad, &kMetaMathQa, &kJsonl, &kChat, &kTokens};

}  // namespace

const TextFormat& text_format(const DataConfig& data) {
  for (const TextFormat* format : kTextFormats) {
    if (format->name == data.name) return *format;
  }
  DSTRAIN_CHECK(false, "not a data set of text");
}

Sources find_sources(const DataConfig& data) {
  if (data.path.empty()) {
    throw Error(ErrorKind::usage, "data.path is empty; it must name the data set's file or folder",
                "set data.path in the recipe or with --set data.path=...");
  }
  return text_format(data).find(data);
}

}  // namespace dstrain::text
