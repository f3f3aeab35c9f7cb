#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace dstrain {

/// `Metaspace` of tokenizer.json, which writes spaces as a visible character: SentencePiece's
/// U+2581.
struct Metaspace {
  enum class Prepend { always, first, never };

  std::string replacement;            ///< one character
  Prepend prepend = Prepend::always;  ///< before which parts of a text one more stands
  bool split = true;                  ///< words begin where it stands
};

/// Error{data} names `path`, `place` and the key.
[[nodiscard]] Metaspace read_metaspace(const nlohmann::json& json, const std::string& path,
                                       const std::string& place);

}  // namespace dstrain
