#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "cmd/command.h"
#include "cmd/input_path.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/output.h"
#include "engine/data/text/record.h"
#include "engine/data/tokenizer/tokenizer.h"

namespace dstrain {
namespace {

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
  constexpr const char* kHint =
      "one value per line; without --json and --decode a line is the text itself";
  try {
    return parse_json(line, where).get<Value>();
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorKind::data, fmt::format("{}: not {}", where, expected), kHint);
  } catch (const Error& error) {
    throw Error(ErrorKind::data, fmt::format("not {}: {}", expected, error.what()), kHint);
  }
}

/// The line of output for one line of input.
std::string answer(const Tokenizer& tokenizer, const TokenizeOptions& options, std::string line,
                   const std::string& where) {
  if (line.size() > text::kMaxRecordBytes)
    throw Error(ErrorKind::data, fmt::format("{}: {}", where, text::too_long(line.size())));
  if (options.decode) {
    const auto ids = read_value<std::vector<std::int32_t>>(line, where, "a JSON list of ids");
    return nlohmann::json(tokenizer.decode(ids, options.skip_special_tokens))
        .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  }
  if (options.json) line = read_value<std::string>(line, where, "a JSON string");
  return fmt::format("[{}]", fmt::join(tokenizer.encode(line, options.add_special_tokens), ","));
}

int tokenize(const TokenizeOptions& options) {
  const auto tokenizer = Tokenizer::open(options.tokenizer);
  const std::string name = options.input.empty() ? "standard input" : options.input;
  constexpr std::size_t kAtOnce = std::size_t{64} << 10;
  std::string out;
  std::int64_t number = 0;
  const auto take = [&](std::string text, bool more) {
    const std::string where = fmt::format("{}:{}", name, ++number);
    out += answer(*tokenizer, options, std::move(text), where) + "\n";
    // At once where the lines are typed.
    if (more && out.size() < kAtOnce) return;
    print_text(out);
    out.clear();
  };
  if (options.input.empty()) {
    std::ios::sync_with_stdio(false);
    for (std::string line; std::getline(std::cin, line);)
      take(std::move(line), std::cin.rdbuf()->in_avail() > 0);
  } else {
    const MappedFile file(options.input);
    for (std::string_view rest = file.text(); !rest.empty();) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(rest.size(), line.size() + 1));
      take(std::string(line), /*more=*/true);
    }
  }
  print_text(out);
  return 0;
}

}  // namespace

Command add_data_tokenize(CLI::App& root) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* app = root.add_subcommand(
      "tokenize",
      "Token ids of text, line by line: what a model sees. Each line of output is a JSON list.\n"
      "Bytes that are no UTF-8 are read as U+FFFD; --decode leaves out ids without a token.\n"
      "Example: echo 'How many eggs?' | dstrain data tokenize --tokenizer Qwen2.5-3B");
  app->add_option("--tokenizer", options->tokenizer,
                  "tokenizer.json, or the model's folder that holds it (BPE).")
      ->required();
  app->add_option("--input", options->input, "File of lines. Default: standard input.")
      ->check(input_file());
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
