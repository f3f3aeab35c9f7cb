#pragma once

#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer/metaspace.h"
#include "engine/data/tokenizer/pattern.h"
#include "engine/data/tokenizer/text_start.h"

namespace dstrain {

/// Cuts text into the words that byte pair encoding sees: `Split`, `Digits` and `Metaspace` steps,
/// then `ByteLevel` where the vocabulary is one of bytes, as tokenizer.json lists them.
class PreTokenizer {
 public:
  /// Working memory of split(); one per thread.
  class Scratch;

  /// `json` is the value of "pre_tokenizer"; null: a text is one word. Error{data} names `path`,
  /// the key and what is not supported.
  PreTokenizer(const nlohmann::json& json, const std::string& path);

  /// The words of valid, not empty UTF-8 in order, as bytes; none is empty. They live as long as
  /// `text` and until the next call with this scratch.
  const std::vector<std::string_view>& split(std::string_view text, TextStart start,
                                             Scratch& scratch) const;

  /// Whether words are encoded as their bytes, not as their characters.
  [[nodiscard]] bool byte_level() const { return byte_level_; }

 private:
  /// How the matching parts of a text are treated (`SplitDelimiterBehavior` of `tokenizers`).
  enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

  struct Step {
    Pattern pattern;
    Behavior behavior;
    bool invert;
    std::optional<Metaspace> metaspace = {};  ///< whose character `pattern` matches
  };

  static Behavior read_behavior(const nlohmann::json& json, const std::string& path,
                                const std::string& place);

  void read(const nlohmann::json& json, const std::string& path, const std::string& place,
            int depth);
  void read_split(const nlohmann::json& json, const std::string& path, const std::string& place);
  void read_digits(const nlohmann::json& json, const std::string& path, const std::string& place);
  void read_metaspace_step(const nlohmann::json& json, const std::string& path,
                           const std::string& place);
  void read_byte_level(const nlohmann::json& json, const std::string& path,
                       const std::string& place);

  static void apply(const Step& step, std::string_view text, std::vector<std::string_view>& words,
                    Scratch& scratch);
  static void mark_spaces(const Step& step, std::string_view text, TextStart start,
                          Scratch& scratch);
  static void add_prefix_spaces(std::string_view text, TextStart start, Scratch& scratch);

  std::vector<Step> steps_;  ///< ByteLevel's own pattern is the last of them
  bool byte_level_ = false;  ///< seen while reading
  /// add_prefix_space: index of the step that it precedes.
  std::optional<std::size_t> prefix_space_before_;
};

class PreTokenizer::Scratch {
 public:
  /// As PatternScratch::begin_text().
  void begin_text(std::size_t bytes) { pattern_.begin_text(bytes); }

 private:
  friend class PreTokenizer;

  struct Part {
    std::size_t begin;
    std::size_t end;
    bool is_match;
  };

  PatternScratch pattern_;
  std::vector<Part> parts_;
  std::vector<std::string_view> words_;
  std::vector<std::string_view> next_;
  std::deque<std::string> prefixed_;  ///< words that are no part of the text
};

}  // namespace dstrain
