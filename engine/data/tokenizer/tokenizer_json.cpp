#include "engine/data/tokenizer/tokenizer_json.h"

#include <fmt/format.h>

#include <utility>

#include "engine/base/error.h"

namespace dstrain {

namespace {

using Json = nlohmann::json;

constexpr std::size_t kDeepest = 64;
/// Offsets into the text of tokens are 32 bits.
constexpr std::size_t kLargestFile = std::size_t{1} << 30;

[[noreturn]] void refuse_json(const std::string& path, std::size_t byte) {
  throw Error(ErrorKind::data, fmt::format("{}: not JSON at byte {}", path, byte),
              "the file may be cut off, or a pointer of Git LFS in place of it");
}

/// Receives the values of tokenizer.json as nlohmann's parser meets them.
class Reader final : public nlohmann::json_sax<Json> {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  TokenizerJson take() {
    if (!result_.rest.is_object()) {
      throw Error(ErrorKind::data,
                  fmt::format("{}: holds {}, not an object", path_, result_.rest.type_name()));
    }
    return std::move(result_);
  }

  bool null() override { return value(nullptr); }
  bool boolean(bool v) override { return value(v); }
  bool number_integer(number_integer_t v) override { return value(v); }
  bool number_float(number_float_t v, const string_t& /*text*/) override { return value(v); }
  bool binary(binary_t& /*v*/) override { return false; }

  bool number_unsigned(number_unsigned_t v) override {
    if (place_ != Place::vocab) return value(v);
    if (v > static_cast<number_unsigned_t>(kGreatestTokenId)) {
      refuse(fmt::format("model.vocab['{}']: id {} is beyond {}", key_, v, kGreatestTokenId));
    }
    result_.vocab.push_back({.token = store(key_), .id = static_cast<std::int32_t>(v)});
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

  bool key(string_t& v) override {
    key_ = std::move(v);
    return true;
  }

  bool start_object(std::size_t /*count*/) override {
    if (in_model() && key_ == "vocab") {
      place_ = Place::vocab;
      result_.vocab.clear();
      result_.has_vocab = true;
      return true;
    }
    return open(Json::object());
  }

  bool end_object() override {
    if (place_ == Place::vocab) {
      place_ = Place::rest;
    } else {
      open_.pop_back();
    }
    return true;
  }

  bool start_array(std::size_t /*count*/) override {
    if (place_ == Place::merges) {
      place_ = Place::pair;
      pair_.clear();
      return true;
    }
    if (in_model() && key_ == "merges") {
      place_ = Place::merges;
      result_.merges.clear();
      result_.has_merges = true;
      return true;
    }
    return open(Json::array());
  }

  bool end_array() override {
    if (place_ == Place::pair) {
      if (pair_.size() != 2) refuse_merge(fmt::format("{} tokens", pair_.size()));
      result_.merges.push_back({.left = pair_[0], .right = pair_[1]});
      place_ = Place::merges;
    } else if (place_ == Place::merges) {
      place_ = Place::rest;
    } else {
      open_.pop_back();
    }
    return true;
  }

  bool parse_error(std::size_t byte, const std::string& /*last*/,
                   const Json::exception& /*error*/) override {
    refuse_json(path_, byte);
  }

 private:
  /// Where in the file the next value stands.
  enum class Place { rest, vocab, merges, pair };

  struct Open {
    Json* value;
    bool is_model;
  };

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::data, fmt::format("{}: {}", path_, what),
                "expected tokenizer.json as `tokenizers` saves it");
  }
  [[noreturn]] void refuse_merge(const std::string& what) const {
    refuse(fmt::format("model.merges[{}]: {}, expected two tokens", result_.merges.size(), what));
  }

  [[nodiscard]] bool in_model() const {
    return place_ == Place::rest && !open_.empty() && open_.back().is_model;
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
      refuse_merge(fmt::format("'{}'", line));
    }
    const TokenizerJson::Text left = store(line.substr(0, space));
    result_.merges.push_back({.left = left, .right = store(line.substr(space + 1))});
  }

  Json* add(Json&& v) {
    if (open_.empty()) {
      result_.rest = std::move(v);
      return &result_.rest;
    }
    Json& parent = *open_.back().value;
    if (parent.is_array()) {
      parent.push_back(std::move(v));
      return &parent.back();
    }
    return &(parent[key_] = std::move(v));
  }

  bool value(Json v) {
    demand_rest(v);
    add(std::move(v));
    return true;
  }

  bool open(Json v) {
    demand_rest(v);
    if (open_.size() >= kDeepest) refuse(fmt::format("nested more than {} deep", kDeepest));
    const bool is_model =
        open_.size() == 1 && open_[0].value->is_object() && key_ == "model" && v.is_object();
    Json* added = add(std::move(v));
    open_.push_back({.value = added, .is_model = is_model});
    return true;
  }

  /// Inside of the vocabulary and of the merges other values are out of place.
  void demand_rest(const Json& v) const {
    if (place_ == Place::vocab) {
      refuse(fmt::format("model.vocab['{}']: {}, expected an id", key_, v.dump()));
    }
    if (place_ != Place::rest) refuse_merge(v.type_name());
  }

  const std::string& path_;
  TokenizerJson result_;
  Place place_ = Place::rest;
  std::vector<Open> open_;  ///< objects and lists that are not yet at their end
  std::string key_;
  std::vector<TokenizerJson::Text> pair_;
};

}  // namespace

TokenizerJson read_tokenizer_json(std::string_view json, const std::string& path) {
  if (json.size() > kLargestFile) {
    throw Error(ErrorKind::data, fmt::format("{}: {} bytes are no tokenizer", path, json.size()));
  }
  Reader reader(path);
  Json::sax_parse(json, &reader);
  return reader.take();
}

nlohmann::json read_small_json(std::string_view json, const std::string& path) {
  return read_tokenizer_json(json, path).rest;
}

}  // namespace dstrain
