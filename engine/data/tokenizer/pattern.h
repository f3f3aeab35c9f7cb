#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace dstrain {

/// Memory that matching needs, and what it may cost; one per thread.
class PatternScratch {
 public:
  PatternScratch();
  ~PatternScratch();
  /// What is matched from here on is of a text of `bytes`: its length says how long all patterns
  /// together may take.
  void begin_text(std::size_t bytes);
  PatternScratch(const PatternScratch&) = delete;
  PatternScratch& operator=(const PatternScratch&) = delete;

 private:
  friend class Pattern;
  /// Error{data} beginning with `where` when the time of the text is up.
  void check_time(const std::string& where);

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
  /// none. Error{data} when the pattern needs more memory than is sane, or more time than
  /// begin_text() allowed.
  bool find(std::string_view text, std::size_t from, Match& match, PatternScratch& scratch) const;

 private:
  /// PCRE2's answer for matches that begin from byte `from` to `last`.
  int search(std::string_view text, std::size_t from, std::size_t last,
             PatternScratch& scratch) const;

  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace dstrain
