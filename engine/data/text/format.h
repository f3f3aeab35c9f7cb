#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "engine/data/text/record.h"
#include "engine/data/text/source_files.h"
#include "engine/recipe/recipe.h"

namespace dstrain::text {

/// A format of text: a file of this folder that defines it, and a row of sources.cpp.
struct TextFormat {
  DatasetName name;
  /// Error{data} or Error{usage} says which files were looked for.
  Sources (*find)(const DataConfig& data);
  /// Reads one of them; chats begin with the message `system`.
  void (*read)(const DataConfig& data, const SourceFiles& sources,
               const std::filesystem::path& file, const std::string& system,
               const RecordSink& sink);
  /// Error{usage} where keys of the recipe that only it reads are wrong; null: it has none.
  void (*check)(const DataConfig& data) = nullptr;
  bool answers = false;                ///< its records say the right ones, and maybe a rule
  bool chat = false;                   ///< its samples are Qwen2.5's chats, in words
  std::string_view record = "record";  ///< what a record of its files is called
  bool prepared = false;               ///< its files hold tokens, not text
};

extern const TextFormat kSquad, kMetaMathQa, kJsonl, kChat, kTokens;

/// The format that data.name is.
[[nodiscard]] const TextFormat& text_format(const DataConfig& data);

}  // namespace dstrain::text
