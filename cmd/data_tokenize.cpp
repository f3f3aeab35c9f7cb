#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cmd/command.h"
#include "engine/base/error.h"
#include "engine/data/tokenizer/tokenizer.h"

namespace dstrain {
namespace {

using Json = nlohmann::json;

struct TokenizeOptions {
  std::string tokenizer;
  std::string input;
  bool json = false;
  bool decode = false;
  bool add_special_tokens = false;
  bool skip_special_tokens = false;
};

/// One line of input as JSON of the wanted type.
template <class Value>
Value read_value(const std::string& line, const std::string& where, const char* expected) {
  try {
    return Json::parse(line).get<Value>();
  } catch (const Json::exception&) {
    throw Error(ErrorKind::data, fmt::format("{}: not {}", where, expected),
                "one value per line; without --json and --decode a line is the text itself");
  }
}

/// The line of output for one line of input.
std::string answer(const Tokenizer& tokenizer, const TokenizeOptions& options, std::string line,
                   const std::string& where) {
  if (options.decode) {
    const auto ids = read_value<std::vector<std::int32_t>>(line, where, "a JSON list of ids");
    return Json(tokenizer.decode(ids, options.skip_special_tokens)).dump(-1, ' ', true);
  }
  if (options.json) line = read_value<std::string>(line, where, "a JSON string");
  return fmt::format("[{}]", fmt::join(tokenizer.encode(line, options.add_special_tokens), ","));
}

int tokenize(const TokenizeOptions& options) {
  const auto tokenizer = Tokenizer::open(options.tokenizer);
  std::ifstream file;
  if (!options.input.empty()) {
    file.open(options.input, std::ios::binary);
    if (!file) throw Error(ErrorKind::usage, fmt::format("cannot open {}", options.input));
  }
  std::ios::sync_with_stdio(false);
  std::istream& input = options.input.empty() ? std::cin : file;
  const std::string name = options.input.empty() ? "standard input" : options.input;
  std::string line;
  for (std::int64_t number = 1; std::getline(input, line); ++number) {
    const std::string out =
        answer(*tokenizer, options, std::move(line), fmt::format("{}:{}", name, number)) + "\n";
    std::fwrite(out.data(), 1, out.size(), stdout);
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw Error(ErrorKind::usage, "cannot write to standard output");
  }
  return 0;
}

}  // namespace

Command add_data_tokenize(CLI::App& root) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* app = root.add_subcommand(
      "tokenize",
      "Token ids of text, line by line: what a model sees. Each line of output is a JSON list.\n"
      "Example: echo 'How many eggs?' | dstrain data tokenize --tokenizer Qwen2.5-3B");
  app->add_option("--tokenizer", options->tokenizer,
                  "tokenizer.json, or the model's folder that holds it (byte-level BPE).")
      ->required()
      ->check(CLI::ExistingPath);
  app->add_option("--input", options->input, "File of lines. Default: standard input.")
      ->check(CLI::ExistingFile);
  auto* json = app->add_flag("--json", options->json,
                             "Each line is a JSON string, so that a text may hold line ends.");
  auto* add = app->add_flag("--add-special-tokens", options->add_special_tokens,
                            "Add what the tokenizer puts around a text. Default: the text alone.");
  auto* decode =
      app->add_flag(
             "--decode", options->decode,
             "The other way round: each line is a JSON list of ids, the output a JSON string.")
          ->excludes(json)
          ->excludes(add);
  app->add_flag("--skip-special-tokens", options->skip_special_tokens,
                "Leave special tokens out of the decoded text. Default: keep them.")
      ->needs(decode);
  return {app, [options] { return tokenize(*options); }};
}

}  // namespace dstrain
