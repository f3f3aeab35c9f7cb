#pragma once

#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/data/text/encoder.h"
#include "engine/data/text/progress_sink.h"
#include "engine/data/text/record.h"
#include "engine/recipe/recipe.h"

/// Data sets of text in their published formats, made for the tests.
namespace dstrain::test {

using Json = nlohmann::ordered_json;

/// Content as it is; makes the folder.
void write_text(const std::filesystem::path& path, const std::string& content);

/// A SQuAD question whose answer stands at code point `start`; v2 when `impossible` is not null.
Json squad_question(const std::string& question, const std::string& answer, int start);
Json squad_impossible(const std::string& question);
/// One article of one paragraph; the members in the order of v1.1 or v2.0.
Json squad_file(const std::string& context, const std::vector<Json>& questions, bool v2 = false);

Json metamathqa_entry(const std::string& query, const std::string& response,
                      const std::string& original);

DataConfig text_config(DatasetName name, const std::filesystem::path& path,
                       const std::filesystem::path& cache);

/// One token per byte, 256 closes a sample, 257 fills up. `opened` counts how often it was opened.
inline constexpr std::uint32_t kByteEnd = 256, kBytePad = 257;
text::EncoderSource byte_encoder(std::atomic<int>* opened = nullptr);
/// The text of such tokens, without end and fill.
std::string bytes_of(const std::vector<std::int64_t>& tokens);

/// tokenizer.json of the 256 bytes and these special tokens, ids from 256.
std::string byte_tokenizer(const std::vector<std::string>& special);

/// Keeps what it is given.
struct Heard final : ProgressSink {
  void note(const std::string& text) override { notes.push_back(text); }
  void progress(double share, const std::string& text) override {
    shares.push_back(share);
    last = text;
  }
  [[nodiscard]] bool has(const std::string& part) const {
    for (const std::string& note : notes) {
      if (note.find(part) != std::string::npos) return true;
    }
    return false;
  }
  std::vector<std::string> notes;
  std::vector<double> shares;
  std::string last;
};

}  // namespace dstrain::test
