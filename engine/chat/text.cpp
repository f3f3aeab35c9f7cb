#include "engine/chat/text.h"

#include <algorithm>
#include <utility>

namespace dstrain::chat {

Text::Text(std::string bytes, Source source) : bytes_(std::move(bytes)) {
  if (!bytes_.empty()) runs_.push_back({bytes_.size(), source});
}

Source Text::source_at(std::size_t byte) const {
  const auto run = std::ranges::upper_bound(runs_, byte, {}, &Run::end);
  return run == runs_.end() ? Source{} : run->source;
}

void Text::append(std::string_view bytes, Source source) {
  if (bytes.empty()) return;
  bytes_.append(bytes);
  if (!runs_.empty() && runs_.back().source == source) {
    runs_.back().end = bytes_.size();
  } else {
    runs_.push_back({bytes_.size(), source});
  }
}

void Text::append_part(const Text& text, std::size_t begin, std::size_t end) {
  auto run = std::ranges::upper_bound(text.runs_, begin, {}, &Run::end);
  for (; begin < end && run != text.runs_.end(); ++run) {
    const std::size_t stop = std::min(end, run->end);
    append(std::string_view(text.bytes_).substr(begin, stop - begin), run->source);
    begin = stop;
  }
}

Text Text::part(std::size_t begin, std::size_t end) const {
  Text part;
  part.append_part(*this, begin, end);
  return part;
}

void Text::mark() {
  std::vector<Run> runs;
  for (Run run : runs_) {
    run.source.marked = true;
    if (!runs.empty() && runs.back().source == run.source) {
      runs.back().end = run.end;
    } else {
      runs.push_back(run);
    }
  }
  runs_ = std::move(runs);
}

}  // namespace dstrain::chat
