#include "test/data/text_files.h"

#include <fstream>

#include "test/data/tokenizer_file.h"

namespace dstrain::test {

void write_text(const std::filesystem::path& path, const std::string& content) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << content;
}

Json squad_question(const std::string& question, const std::string& answer, int start) {
  return {{"id", "56be4db0acb8001400a502ec"},
          {"question", question},
          {"answers", Json::array({{{"text", answer}, {"answer_start", start}},
                                   {{"text", "another answer"}, {"answer_start", 0}}})}};
}

Json squad_impossible(const std::string& question) {
  return {{"question", question},
          {"id", "5a8d7bf7df8bba001a0f9ab1"},
          {"answers", Json::array()},
          {"plausible_answers", Json::array({{{"text", "plausible"}, {"answer_start", 3}}})},
          {"is_impossible", true}};
}

Json squad_file(const std::string& context, const std::vector<Json>& questions, bool v2) {
  Json paragraph;
  if (!v2) paragraph["context"] = context;
  paragraph["qas"] = questions;
  if (v2) paragraph["context"] = context;
  const Json data = {{{"title", "University_of_Notre_Dame"}, {"paragraphs", {paragraph}}}};
  if (v2) return {{"version", "v2.0"}, {"data", data}};
  return {{"data", data}, {"version", "1.1"}};
}

Json metamathqa_entry(const std::string& query, const std::string& response,
                      const std::string& original) {
  return {{"type", "MATH_AnsAug"},
          {"query", query},
          {"original_question", original},
          {"response", response}};
}

DataConfig text_config(DatasetName name, const std::filesystem::path& path,
                       const std::filesystem::path& cache) {
  DataConfig data;
  data.name = name;
  data.path = path.string();
  data.cache = cache.string();
  return data;
}

text::EncoderSource byte_encoder(std::atomic<int>* opened) {
  text::EncoderSource source;
  source.hash = source.tokenizer = "bytes";
  source.open = [opened] {
    if (opened != nullptr) ++*opened;
    text::Encoder encoder;
    encoder.append = [](std::string_view text, std::vector<std::uint32_t>& tokens) {
      for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    };
    encoder.vocab_size = kBytePad + 1;
    encoder.end = kByteEnd;
    encoder.pad = kBytePad;
    encoder.system = "You are a helpful assistant.";
    return encoder;
  };
  return source;
}

std::string bytes_of(const std::vector<std::int64_t>& tokens) {
  std::string text;
  for (const std::int64_t token : tokens) {
    if (token < kByteEnd) text += static_cast<char>(token);
  }
  return text;
}

std::string byte_tokenizer(const std::vector<std::string>& special) {
  nlohmann::json file = tokenizer_file({});
  for (const std::string& token : special) {
    file["added_tokens"].push_back({{"id", 256 + file["added_tokens"].size()},
                                    {"content", token},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", true}});
  }
  return file.dump();
}

}  // namespace dstrain::test
