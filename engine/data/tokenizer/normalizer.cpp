#include "engine/data/tokenizer/normalizer.h"

#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/data/tokenizer/json_fields.h"
#include "engine/data/tokenizer/nfc.h"

namespace dstrain {

namespace {

constexpr int kDeepestStep = 16;

}  // namespace

bool append_replaced(std::string_view text, std::string_view pattern, std::string_view content,
                     std::string& out) {
  std::size_t found = text.find(pattern);
  if (found == std::string_view::npos) return false;
  std::size_t done = 0;
  for (; found != std::string_view::npos; found = text.find(pattern, done)) {
    out.append(text.substr(done, found - done)).append(content);
    done = found + pattern.size();
  }
  out.append(text.substr(done));
  return true;
}

void demand_growth(std::size_t bytes, std::size_t before, const std::string& where) {
  constexpr std::size_t kFree = 1024;
  if (bytes / kMaxGrowth <= before + kFree) return;
  throw Error(ErrorKind::data, fmt::format("{}: makes {} bytes of {}, more than {} times as many",
                                           where, bytes, before, kMaxGrowth));
}

std::string read_content(const nlohmann::json& json, const char* key, const std::string& path,
                         const std::string& place) {
  const JsonFields fields(json, path, place);
  std::string content = fields.required_text(key);
  if (content.size() > kMaxGrowth)
    throw Error(ErrorKind::data, fmt::format("{}: {} bytes, more than {}", fields.where(key),
                                             content.size(), kMaxGrowth));
  return content;
}

std::string read_replaced_text(const nlohmann::json& json, const std::string& path,
                               const std::string& place) {
  const JsonFields fields(json, path, place);
  const JsonFields pattern(fields.field("pattern"), path, fields.place_of("pattern"));
  if (!fields.field("pattern").contains("String"))
    fields.refuse("pattern", "{\"String\": ..}; a Regex to replace is not supported");
  std::string text = pattern.required_text("String");
  if (text.empty()) pattern.refuse("String", "a text that is not empty");
  return text;
}

Normalizer::Normalizer(const nlohmann::json& json, const std::string& path) : path_(path) {
  read(json, path, "normalizer", 0);
}

void Normalizer::read(const nlohmann::json& json, const std::string& path, const std::string& place,
                      int depth) {
  if (json.is_null()) return;
  const JsonFields fields(json, path, place);
  const std::string type = fields.required_text("type");
  if (type == "Sequence" && depth < kDeepestStep) {
    const nlohmann::json& list = fields.list("normalizers");
    for (std::size_t i = 0; i < list.size(); ++i)
      read(list[i], path, fmt::format("{}.normalizers[{}]", place, i), depth + 1);
  } else if (type == "NFC") {
    steps_.push_back({.kind = Kind::nfc});
  } else if (type == "Prepend") {
    steps_.push_back(
        {.kind = Kind::prepend, .content = read_content(json, "prepend", path, place)});
  } else if (type == "Replace") {
    steps_.push_back({.kind = Kind::replace,
                      .pattern = read_replaced_text(json, path, place),
                      .content = read_content(json, "content", path, place)});
  } else {
    fields.refuse("type", "NFC, Prepend, Replace or Sequence, which are supported");
  }
}

std::string_view Normalizer::apply(std::string_view text, Buffers& buffers, bool prepends) const {
  const std::size_t before = text.size();
  for (const Step& step : steps_) {
    std::string& buffer = buffers[text.data() == buffers[0].data() ? 1 : 0];
    if (step.kind == Kind::nfc) {
      text = nfc(text, buffer);
      continue;
    }
    buffer.clear();
    if (step.kind == Kind::replace) {
      if (append_replaced(text, step.pattern, step.content, buffer)) text = buffer;
    } else if (prepends && !text.empty()) {
      text = buffer.append(step.content).append(text);
    }
    demand_growth(text.size(), before, path_ + ": normalizer");
  }
  return text;
}

}  // namespace dstrain
