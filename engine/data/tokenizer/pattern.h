#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace dstrain {

/// Memory that matching needs; one per thread.
class PatternScratch {
 public:
  PatternScratch();
  ~PatternScratch();
  PatternScratch(const PatternScratch&) = delete;
  PatternScratch& operator=(const PatternScratch&) = delete;

 private:
  friend class Pattern;
  struct Handles;
  std::unique_ptr<Handles> handles_;
};

/// A regular expression compiled by PCRE2 (10.40 or later) with Unicode properties, and to machine
/// code where the system lets it. Matching is safe from any thread, each with its own scratch.
class Pattern {
 public:
  /// `source` in PCRE2's syntax (pattern_syntax.h); Error{data} beginning with `where` when PCRE2
  /// refuses it.
  Pattern(const std::string& source, const std::string& where);
  ~Pattern();
  Pattern(Pattern&& other) noexcept;
  Pattern& operator=(Pattern&& other) noexcept;

  struct Match {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  /// The leftmost match in valid UTF-8 that begins at byte `from` or later; false when there is
  /// none. Error{data} when the pattern needs more steps or memory than is sane.
  bool find(std::string_view text, std::size_t from, Match& match, PatternScratch& scratch) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace dstrain
