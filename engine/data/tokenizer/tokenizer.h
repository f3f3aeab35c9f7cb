#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer/byte_range.h"
#include "engine/data/tokenizer/text_start.h"

namespace dstrain {

/// A BPE tokenizer from a Hugging Face tokenizer.json, of bytes as BLOOM and Qwen2.5 have it, or of
/// characters as Llama 2 and Mistral have it.
/// Gives the ids that the `tokenizers` package (0.23) gives; truncation and padding of the file are
/// not applied. Every method is safe from any thread.
class Tokenizer {
 public:
  /// Opens tokenizer.json, or a folder that holds it; tokenizer_config.json and chat_template.jinja
  /// beside it are read when they are there. Error{data} names the file, the key, what was found
  /// and what is supported.
  [[nodiscard]] static std::shared_ptr<const Tokenizer> open(
      const std::filesystem::path& file_or_folder);

  /// The same from texts; `path` is what messages call the first, the others may be empty.
  [[nodiscard]] static std::shared_ptr<const Tokenizer> parse(std::string_view tokenizer_json,
                                                              std::string_view config,
                                                              const std::string& path,
                                                              std::string chat_template = {});

  ~Tokenizer();

  /// Bytes that are not UTF-8 are read as U+FFFD, like Python's errors="replace". Added tokens
  /// inside the text become their ids. `add_special_tokens` adds what the file's post-processor
  /// adds around a text; nothing for BLOOM and Qwen2.5.
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text,
                                                 bool add_special_tokens = false) const;

  /// Appends the ids of valid UTF-8, of which `start` says where it stands; special tokens that
  /// touch `plain` stay text. Returns how many did.
  std::int64_t encode_around(std::string_view text, std::span<const ByteRange> plain,
                             TextStart start, std::vector<std::int32_t>& ids) const;

  /// Where a text stands whose predecessor ended with this token.
  [[nodiscard]] TextStart start_behind(std::int32_t id) const;

  /// Tokens that the post-processor puts before a text (Llama 3: <|begin_of_text|>).
  [[nodiscard]] std::vector<std::int32_t> opening() const;

  /// Ids without a token are left out, ill-formed UTF-8 becomes U+FFFD.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids,
                                   bool skip_special_tokens = true) const;

  /// Largest id + 1. A model's embedding may have more rows.
  [[nodiscard]] std::int32_t vocab_size() const;
  [[nodiscard]] std::optional<std::int32_t> token_id(std::string_view token) const;

  /// From tokenizer_config.json; nothing where it names none.
  [[nodiscard]] std::optional<std::int32_t> bos() const;
  [[nodiscard]] std::optional<std::int32_t> eos() const;
  [[nodiscard]] std::optional<std::int32_t> pad() const;
  /// Texts of the tokens that decode() leaves out on demand.
  [[nodiscard]] std::vector<std::string> special_tokens() const;
  /// The Jinja text of chat_template.jinja, else of tokenizer_config.json; empty where there is
  /// none.
  [[nodiscard]] const std::string& chat_template() const;

  /// Hash of the files that were read, for keys of caches.
  [[nodiscard]] std::uint64_t content_hash() const;

 private:
  struct Parts;
  explicit Tokenizer(std::unique_ptr<const Parts> parts);
  std::unique_ptr<const Parts> parts_;
};

}  // namespace dstrain
