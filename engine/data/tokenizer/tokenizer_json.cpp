#include "engine/data/tokenizer/tokenizer_json.h"

#include <fmt/format.h>

#include <utility>

#include "engine/base/error.h"
#include "engine/base/json.h"

namespace dstrain {

namespace {

using Json = nlohmann::json;

/// Offsets into the text of tokens are 32 bits.
constexpr std::uint64_t kLargestFile = std::uint64_t{1} << 30;
/// Deeper than any processor stands; values beside the vocabulary and the merges.
constexpr JsonLimits kLimits = {.bytes = kLargestFile, .depth = 64, .values = 4'000'000};

/// Keeps vocabulary and merges apart from the rest of tokenizer.json.
class Reader final : public JsonBuilder {
 public:
  Reader(std::string_view json, const std::string& path, const JsonPlace& place)
      : JsonBuilder(json, place, kLimits), path_(path) {}

  TokenizerJson read() {
    result_.rest = build();
    if (!result_.rest.is_object()) {
      throw Error(ErrorKind::data,
                  fmt::format("{}: holds {}, not an object", path_, result_.rest.type_name()));
    }
    return std::move(result_);
  }

  bool number_unsigned(number_unsigned_t v) override {
    if (place_ != Place::vocab) return value(v);
    if (v > static_cast<number_unsigned_t>(kMaxTokenId)) {
      refuse(fmt::format("model.vocab['{}']: id {} is beyond {}", shown_text(present_key()), v,
                         kMaxTokenId));
    }
    result_.vocab.push_back({.token = store(present_key()), .id = static_cast<std::int32_t>(v)});
    return true;
  }

  bool string(string_t& v) override {
    if (place_ == Place::merges) {
      merge(v);
    } else if (place_ == Place::pair) {
      pair_.push_back(store(v));
    } else {
      value(std::move(v));
    }
    return true;
  }

  bool start_object(std::size_t count) override {
    if (!in_model() || present_key() != "vocab") return JsonBuilder::start_object(count);
    place_ = Place::vocab;
    result_.vocab.clear();
    result_.has_vocab = true;
    return true;
  }

  bool end_object() override {
    if (place_ != Place::vocab) return close();
    place_ = Place::rest;
    return true;
  }

  bool start_array(std::size_t count) override {
    if (place_ == Place::merges) {
      place_ = Place::pair;
      pair_.clear();
      return true;
    }
    if (!in_model() || present_key() != "merges") return JsonBuilder::start_array(count);
    place_ = Place::merges;
    result_.merges.clear();
    result_.has_merges = true;
    return true;
  }

  bool end_array() override {
    if (place_ == Place::pair) {
      if (pair_.size() != 2) refuse_merge(fmt::format("{} tokens", pair_.size()));
      result_.merges.push_back({.left = pair_[0], .right = pair_[1]});
      place_ = Place::merges;
      return true;
    }
    if (place_ != Place::merges) return close();
    place_ = Place::rest;
    return true;
  }

 private:
  /// Where in the file the next value stands.
  enum class Place { rest, vocab, merges, pair };

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::data, fmt::format("{}: {}", path_, what),
                "expected tokenizer.json as `tokenizers` saves it");
  }
  [[noreturn]] void refuse_merge(const std::string& what) const {
    refuse(fmt::format("model.merges[{}]: {}, expected two tokens", result_.merges.size(), what));
  }

  /// Whether the present value is a member of "model" of the file.
  [[nodiscard]] bool in_model() const {
    return place_ == Place::rest && around().size() == 2 && model_ == around().back();
  }

  TokenizerJson::Text store(std::string_view token) {
    const TokenizerJson::Text place{.offset = static_cast<std::uint32_t>(result_.text.size()),
                                    .length = static_cast<std::uint32_t>(token.size())};
    result_.text += token;
    return place;
  }

  /// "a b". Files of the early days begin the list with a line of their version.
  void merge(std::string_view line) {
    if (line.starts_with("#version")) return;
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
      refuse_merge(fmt::format("'{}'", shown_text(line)));
    }
    const TokenizerJson::Text left = store(line.substr(0, space));
    result_.merges.push_back({.left = left, .right = store(line.substr(space + 1))});
  }

  bool value(Json v) override {
    demand_rest(v);
    return JsonBuilder::value(std::move(v));
  }

  bool open(Json v) override {
    demand_rest(v);
    const bool is_model =
        around().size() == 1 && around()[0]->is_object() && present_key() == "model";
    JsonBuilder::open(std::move(v));
    if (is_model) model_ = around().back();
    return true;
  }

  /// Inside of the vocabulary and of the merges other values are out of place.
  void demand_rest(const Json& v) const {
    if (place_ == Place::vocab) {
      refuse(fmt::format("model.vocab['{}']: {}, expected an id", shown_text(present_key()),
                         shown_json(v)));
    }
    if (place_ != Place::rest) refuse_merge(v.type_name());
  }

  const std::string& path_;
  TokenizerJson result_;
  Place place_ = Place::rest;
  const Json* model_ = nullptr;
  std::vector<TokenizerJson::Text> pair_;
};

}  // namespace

TokenizerJson read_tokenizer_json(std::string_view json, const std::string& path) {
  const JsonPlace place = line_and_column(json, path);
  try {
    return Reader(json, path, place).read();
  } catch (const Error& error) {
    if (!error.hint().empty()) throw;
    throw Error(error.kind(), error.what(),
                "the file may be cut off, or a pointer of Git LFS in place of it");
  }
}

nlohmann::json read_small_json(std::string_view json, const std::string& path) {
  return read_tokenizer_json(json, path).rest;
}

}  // namespace dstrain
