#include "engine/data/tokenizer/pre_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/data/tokenizer/json_fields.h"
#include "engine/data/tokenizer/pattern_syntax.h"
#include "engine/data/tokenizer/utf8.h"

namespace dstrain {

namespace {

/// ByteLevel with use_regex: GPT-2's pattern.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr int kDeepestSequence = 16;

/// Calls `take(begin, end)` for each match, like onig's find_iter: an empty match right after
/// another is none.
template <class Take>
void for_each_match(const Pattern& pattern, std::string_view text, PatternScratch& scratch,
                    Take take) {
  std::size_t from = 0;
  std::optional<std::size_t> last_end;
  Pattern::Match match;
  while (from <= text.size() && pattern.find(text, from, match, scratch)) {
    if (match.begin == match.end && last_end == match.end) {
      from += from < text.size() ? code_point_at(text, from).length : 1;
      continue;
    }
    take(match.begin, match.end);
    from = match.end;
    last_end = match.end;
  }
}

}  // namespace

PreTokenizer::PreTokenizer(const nlohmann::json& json, const std::string& path) {
  if (!json.is_null()) read(json, path, "pre_tokenizer", 0);
}

void PreTokenizer::read(const nlohmann::json& json, const std::string& path,
                        const std::string& place, int depth) {
  const JsonFields fields(json, path, place);
  const std::string type = fields.required_text("type");
  if (byte_level_) fields.refuse("type", "nothing after ByteLevel");
  if (type == "Sequence" && depth < kDeepestSequence) {
    const nlohmann::json& list = fields.list("pretokenizers");
    for (std::size_t i = 0; i < list.size(); ++i) {
      read(list[i], path, fmt::format("{}.pretokenizers[{}]", place, i), depth + 1);
    }
  } else if (type == "Split") {
    read_split(json, path, place);
  } else if (type == "Digits") {
    read_digits(json, path, place);
  } else if (type == "Metaspace") {
    read_metaspace_step(json, path, place);
  } else if (type == "ByteLevel") {
    read_byte_level(json, path, place);
  } else {
    fields.refuse("type", "Sequence, Split, Digits, Metaspace or ByteLevel, which are supported");
  }
}

PreTokenizer::Behavior PreTokenizer::read_behavior(const nlohmann::json& json,
                                                   const std::string& path,
                                                   const std::string& place) {
  const JsonFields fields(json, path, place);
  const std::string behavior = fields.required_text("behavior");
  if (behavior == "Removed") return Behavior::removed;
  if (behavior == "Isolated") return Behavior::isolated;
  if (behavior == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (behavior == "MergedWithNext") return Behavior::merged_with_next;
  if (behavior == "Contiguous") return Behavior::contiguous;
  fields.refuse("behavior", "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

void PreTokenizer::read_split(const nlohmann::json& json, const std::string& path,
                              const std::string& place) {
  const JsonFields fields(json, path, place);
  const nlohmann::json& pattern = fields.field("pattern");
  const std::string where = fields.where("pattern");
  const JsonFields pattern_fields(pattern, path, fields.place_of("pattern"));
  const std::string source = pattern.contains("String")
                                 ? literal_to_pcre2(pattern_fields.required_text("String"))
                                 : to_pcre2(pattern_fields.required_text("Regex"), where);
  steps_.push_back({.pattern = Pattern(source, where),
                    .behavior = read_behavior(json, path, place),
                    .invert = fields.flag("invert", false)});
}

void PreTokenizer::read_digits(const nlohmann::json& json, const std::string& path,
                               const std::string& place) {
  const JsonFields fields(json, path, place);
  const bool each = fields.flag("individual_digits", false);
  steps_.push_back({.pattern = Pattern(to_pcre2(R"(\p{N})", place), fields.where("type")),
                    .behavior = each ? Behavior::isolated : Behavior::contiguous,
                    .invert = false});
}

void PreTokenizer::read_metaspace_step(const nlohmann::json& json, const std::string& path,
                                       const std::string& place) {
  Metaspace metaspace = read_metaspace(json, path, place);
  const JsonFields fields(json, path, place);
  if (std::ranges::any_of(steps_, [](const Step& step) { return step.metaspace.has_value(); }))
    fields.refuse("type", "one Metaspace at most");
  steps_.push_back(
      {.pattern = Pattern(literal_to_pcre2(metaspace.replacement), fields.where("replacement")),
       .behavior = Behavior::merged_with_next,
       .invert = false,
       .metaspace = std::move(metaspace)});
}

void PreTokenizer::read_byte_level(const nlohmann::json& json, const std::string& path,
                                   const std::string& place) {
  const JsonFields fields(json, path, place);
  byte_level_ = true;
  if (fields.flag("add_prefix_space", true)) prefix_space_before_ = steps_.size();
  if (!fields.flag("use_regex", true)) return;
  const std::string where = fields.where("use_regex");
  steps_.push_back({.pattern = Pattern(to_pcre2(kGpt2Pattern, where), where),
                    .behavior = Behavior::isolated,
                    .invert = false});
}

void PreTokenizer::apply(const Step& step, std::string_view text,
                         std::vector<std::string_view>& words, Scratch& scratch) {
  const auto add = [&](std::size_t begin, std::size_t end) {
    if (end > begin) words.push_back(text.substr(begin, end - begin));
  };
  std::size_t end_of_last = 0;
  if (step.behavior == Behavior::isolated) {
    for_each_match(step.pattern, text, scratch.pattern_, [&](std::size_t begin, std::size_t end) {
      add(end_of_last, begin);
      add(begin, end);
      end_of_last = end;
    });
    add(end_of_last, text.size());
    return;
  }

  // Parts cover the text; neighbours are joined as `tokenizers` does.
  auto& parts = scratch.parts_;
  parts.clear();
  for_each_match(step.pattern, text, scratch.pattern_, [&](std::size_t begin, std::size_t end) {
    if (end_of_last != begin) parts.push_back({end_of_last, begin, step.invert});
    parts.push_back({begin, end, !step.invert});
    end_of_last = end;
  });
  if (end_of_last != text.size()) parts.push_back({end_of_last, text.size(), step.invert});

  const bool backwards = step.behavior == Behavior::merged_with_next;
  if (backwards) std::reverse(parts.begin(), parts.end());
  const std::size_t first_word = words.size();
  std::size_t begin = 0, end = 0;
  bool joined_any = false, previous_match = false;
  for (const Scratch::Part& part : parts) {
    if (step.behavior == Behavior::removed) {
      if (!part.is_match) add(part.begin, part.end);
      continue;
    }
    const bool joins = step.behavior == Behavior::contiguous ? part.is_match == previous_match
                                                             : part.is_match && !previous_match;
    previous_match = part.is_match;
    if (joins && joined_any) {
      begin = std::min(begin, part.begin);
      end = std::max(end, part.end);
      continue;
    }
    if (joined_any) add(begin, end);
    begin = part.begin;
    end = part.end;
    joined_any = true;
  }
  if (joined_any) add(begin, end);
  if (backwards) std::reverse(words.begin() + static_cast<std::ptrdiff_t>(first_word), words.end());
}

/// Appends `text`, with its spaces marked, to the next words.
void PreTokenizer::mark_spaces(const Step& step, std::string_view text, TextStart start,
                               Scratch& scratch) {
  using enum Metaspace::Prepend;
  const Metaspace& metaspace = *step.metaspace;
  std::string& marked = scratch.prefixed_.emplace_back();
  const bool wanted = (metaspace.prepend == always && start != TextStart::continued) ||
                      (metaspace.prepend == first && start == TextStart::first);
  if (wanted && !text.starts_with(' ') && !text.starts_with(metaspace.replacement))
    marked = metaspace.replacement;
  for (const char c : text) {
    if (c == ' ') {
      marked += metaspace.replacement;
    } else {
      marked += c;
    }
  }
  if (metaspace.split) {
    apply(step, marked, scratch.next_, scratch);
  } else {
    scratch.next_.push_back(marked);
  }
}

void PreTokenizer::add_prefix_spaces(std::string_view text, TextStart start, Scratch& scratch) {
  for (std::string_view& word : scratch.words_) {
    const bool goes_on = start == TextStart::continued && word.data() == text.data();
    if (goes_on || word.starts_with(' ')) continue;
    scratch.prefixed_.push_back(" " + std::string(word));
    word = scratch.prefixed_.back();
  }
}

const std::vector<std::string_view>& PreTokenizer::split(std::string_view text, TextStart start,
                                                         Scratch& scratch) const {
  scratch.prefixed_.clear();
  scratch.words_.assign(1, text);
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    if (prefix_space_before_ == i) add_prefix_spaces(text, start, scratch);
    scratch.next_.clear();
    for (const std::string_view word : scratch.words_) {
      if (steps_[i].metaspace) {
        mark_spaces(steps_[i], word, word.data() == text.data() ? start : TextStart::part, scratch);
      } else {
        apply(steps_[i], word, scratch.next_, scratch);
      }
    }
    std::swap(scratch.words_, scratch.next_);
  }
  if (prefix_space_before_ == steps_.size()) add_prefix_spaces(text, start, scratch);
  return scratch.words_;
}

}  // namespace dstrain
