#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/data/tokenizer/token_table.h"
#include "engine/data/tokenizer/tokenizer_json.h"
#include "engine/data/tokenizer/word_cache.h"

namespace dstrain {

/// Byte pair encoding (Sennrich et al. 2016, arXiv:1508.07909): the symbols of a word start as its
/// bytes or its characters, and of all neighbours that have a merge the one of lowest rank is
/// joined, the leftmost first, until none is left.
class Bpe {
 public:
  /// Memory that encoding needs; one per thread.
  class Scratch;

  /// `vocab` holds the tokens of `file`; `byte_level`: in byte characters. Error{data} names `path`
  /// and the key: a merge of unknown tokens, an option that is not supported.
  Bpe(const TokenizerJson& file, const TokenTable& vocab, bool byte_level, const std::string& path);

  /// Appends the ids of one word, given as bytes; not empty.
  void encode(std::string_view word, std::vector<std::int32_t>& ids, Scratch& scratch) const;

 private:
  /// What joining two neighbours gives; `rank` is the line in the list of merges.
  struct Merge {
    std::uint64_t pair = kNoPair;
    std::int32_t rank = 0;
    std::int32_t id = 0;
  };
  static constexpr std::uint64_t kNoPair = ~std::uint64_t{0};

  void read_options(const nlohmann::json& model, const TokenTable& vocab, const std::string& path);
  void read_bytes(const nlohmann::json& model, const TokenTable& vocab, const std::string& path);
  void read_characters(const nlohmann::json& model, const TokenTable& vocab,
                       const std::string& path);
  void read_merges(const TokenizerJson& file, const TokenTable& vocab, const std::string& path);
  void read_whole_words(const TokenTable& vocab);

  [[nodiscard]] std::size_t slot_of(std::uint64_t pair) const;
  [[nodiscard]] const Merge* find_merge(std::int32_t left, std::int32_t right) const;

  void split_into_bytes(std::string_view word, std::vector<std::int32_t>& symbols) const;
  void split_into_characters(std::string_view word, std::vector<std::int32_t>& symbols) const;
  bool append_bytes(std::string_view character, std::vector<std::int32_t>& symbols) const;
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;

  std::vector<Merge> merges_;  ///< a table with free slots; a power of two of them
  int shift_ = 0;
  bool byte_level_;
  /// The token of a byte; else of one that a character which is no token falls back to (<0x0A>).
  /// kNoSymbol where the vocabulary lacks it.
  std::array<std::int32_t, 256> symbol_of_byte_{};
  std::unordered_map<char32_t, std::int32_t> symbol_of_character_;  ///< without byte_level_
  std::int32_t unknown_ = kNoSymbol;  ///< in place of missing symbols; without it they vanish
  bool fuse_unknown_ = false;
  bool whole_words_first_ = false;  ///< ignore_merges: a word that is a token is that token
  TokenTable whole_words_;          ///< by bytes, for whole_words_first_

  static constexpr std::int32_t kNoSymbol = -1;
};

class Bpe::Scratch {
 private:
  friend class Bpe;

  struct Symbol {
    std::int32_t id;
    std::int32_t previous;  ///< position, -1 at the start
    std::int32_t next;      ///< position, -1 at the end
    bool removed;
  };
  struct Candidate {
    std::int32_t rank;
    std::int32_t position;  ///< of the left symbol
    std::int32_t id;        ///< what the merge gives
  };

  WordCache cache_;
  std::vector<std::int32_t> symbols_;
  std::vector<const Merge*> pairs_;
  std::vector<std::int32_t> ranks_;
  std::vector<Symbol> list_;
  std::vector<Candidate> heap_;
};

}  // namespace dstrain
