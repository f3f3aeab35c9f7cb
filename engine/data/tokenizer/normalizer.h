#pragma once

#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain {

/// What is done to a text before it is cut into words: `NFC`, `Prepend`, `Replace` of a text, and
/// sequences of these, as tokenizer.json lists them.
class Normalizer {
 public:
  /// Working memory of apply(); one per thread.
  using Buffers = std::array<std::string, 2>;

  /// `json` is the value of "normalizer", which may be null. Error{data} names `path`, the key and
  /// what is not supported.
  Normalizer(const nlohmann::json& json, const std::string& path);

  /// `text`, valid UTF-8, itself where nothing changes, else a view of one of the buffers.
  /// Nothing is put before it where `prepends` is false. Error{data} where a text grows beyond
  /// kMaxGrowth.
  [[nodiscard]] std::string_view apply(std::string_view text, Buffers& buffers,
                                       bool prepends = true) const;

 private:
  enum class Kind { nfc, prepend, replace };
  struct Step {
    Kind kind;
    std::string pattern = {};  ///< of replace; not empty
    std::string content = {};  ///< what is put there
  };
  void read(const nlohmann::json& json, const std::string& path, const std::string& place,
            int depth);

  std::string path_;
  std::vector<Step> steps_;
};

/// A text may become so many times longer; a few bytes are free. Files that ask for more are made
/// to hurt.
inline constexpr std::size_t kMaxGrowth = 64;
/// Error{data} beginning with `where` for `bytes` that were made of `before`.
void demand_growth(std::size_t bytes, std::size_t before, const std::string& where);

/// Appends `text` with `content` in place of each `pattern`, which is not empty; false, and nothing
/// is appended, where there is none.
bool append_replaced(std::string_view text, std::string_view pattern, std::string_view content,
                     std::string& out);

/// A text of at most kMaxGrowth bytes. Error{data} for others.
[[nodiscard]] std::string read_content(const nlohmann::json& json, const char* key,
                                       const std::string& path, const std::string& place);

/// The text that a `Replace` of tokenizer.json looks for: {"String": ".."}. Error{data} for an
/// empty one and for regular expressions.
[[nodiscard]] std::string read_replaced_text(const nlohmann::json& json, const std::string& path,
                                             const std::string& place);

}  // namespace dstrain
