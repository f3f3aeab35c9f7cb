#include "engine/data/text/token_cache.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/units.h"
#include "engine/data/text/build_lock.h"
#include "engine/data/text/file_stamp.h"
#include "engine/data/text/hash.h"
#include "engine/data/text/tokenise.h"
#include "engine/recipe/choices.h"
#include "engine/recipe/datasets.h"

namespace dstrain::text {
namespace {

namespace fs = std::filesystem;

/// Raised whenever the same files, tokenizer and options give other tokens, or the file another
/// layout.
constexpr int kFormat = 4;

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

std::string_view contents_of(std::string_view kind) {
  return kind == "tokens" ? "tokenised data" : "packed images";
}

/// Everything that the tokens depend on but the file.
std::string form_of(const DataConfig& data, const SourceFiles& sources,
                    const EncoderSource& encoder) {
  std::string key = fmt::format("{}\n{}\n{}\n", kFormat, spelling(data.name), encoder.hash);
  if (sources.unanswerable) key += "unanswerable\n";
  if (sources.tar) key += "tar\n";
  if (reads(dataset_row(data.name), "data.prompt")) {
    key += fmt::format("{} {}\n{}{}\n", data.prompt.size(), data.response.size(), data.prompt,
                       data.response);
  }
  return hash128(key);
}

TokenFileSummary build(const DataConfig& data, const SourceFiles& sources,
                       const EncoderSource& source, bool test, const fs::path& path,
                       const KeyField& key, const Tell& tell) {
  const Encoder encoder = source.open();
  constexpr std::int64_t kMaxShort = 65536;
  const bool is_short = encoder.vocab_size <= kMaxShort && !encoder.append_chat;
  TokenFileWriter writer(path, key, is_short ? 2 : 4);
  TokenFileSummary summary = tokenise(data, sources, encoder, writer, tell);
  summary.tokenizer = source.tokenizer;
  summary.set = data.pairs ? std::string(kPairsSet) : std::string(spelling(data.name));
  summary.form = form_of(data, sources, source);
  summary.test = test;
  writer.finish(summary);
  return summary;
}

}  // namespace

fs::path cache_folder(const DataConfig& data, const char* kind) {
  if (!data.cache.empty()) return data.cache;
  if (const char* cache = variable("DSTRAIN_CACHE")) return fs::path(cache) / kind;
  if (const char* cache = variable("XDG_CACHE_HOME")) return fs::path(cache) / "dstrain" / kind;
  if (const char* home = variable("HOME")) return fs::path(home) / ".cache/dstrain" / kind;
  throw Error(ErrorKind::usage, fmt::format("no folder for {}: HOME is not set", contents_of(kind)),
              "name one in data.cache");
}

fs::path make_cache_folder(const DataConfig& data, const char* kind) {
  fs::path folder = cache_folder(data, kind);
  std::error_code error;
  fs::create_directories(folder, error);
  if (path_kind(folder, ErrorKind::usage) != PathKind::folder) {
    throw Error(ErrorKind::usage,
                fmt::format("cannot make the folder {} for {}: {}", folder.string(),
                            contents_of(kind), error.message()),
                "name a folder that can be written in data.cache");
  }
  return folder;
}

namespace {

/// The tokens of the one file of `source`.
TokenFile open_one(const DataConfig& data, const SourceFiles& source, const EncoderSource& encoder,
                   ProgressSink* progress, bool test) {
  const fs::path folder = make_cache_folder(data);
  const std::string first = source.files.front().filename().string();
  const std::string made_from =
      hash128(fmt::format("{}\n{}\n{}", form_of(data, source, encoder),
                          content_hash(source.files.front(), folder), test ? "test" : "train"));
  const KeyField key = key_field(made_from);
  const fs::path path = folder / fmt::format("{}-{}.tokens", spelling(data.name), made_from);
  std::string problem;
  if (auto file = TokenFile::open(path, key, problem)) return std::move(*file);

  const BuildLock lock(path.string() + ".lock", "tokenising " + first, progress);
  if (auto file = TokenFile::open(path, key, problem)) return std::move(*file);
  if (progress != nullptr && path_exists(path)) {
    progress->note(fmt::format("{} is made again: {}", path.string(), problem));
  }
  if (lock.held()) BuildFile::remove_leftovers(path);
  const auto begin = std::chrono::steady_clock::now();
  const TokenFileSummary summary =
      build(data, source, encoder, test, path, key, [&](double share, const std::string& text) {
        lock.report(share, text);
        if (progress != nullptr) progress->progress(share, text);
      });
  auto file = TokenFile::open(path, key, problem);
  if (!file) {
    throw Error(ErrorKind::usage,
                fmt::format("{} was just written, yet {}", path.string(), problem),
                "the disk of data.cache may be failing; name another folder");
  }
  if (progress != nullptr) {
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    progress->note(fmt::format("tokenised {}: {} records, {} tokens in {}, kept in {}", first,
                               summary.num_records,
                               format_count(static_cast<double>(file->num_tokens())),
                               format_duration(seconds), path.string()));
  }
  return std::move(*file);
}

}  // namespace

TokenFiles open_tokens(const DataConfig& data, const SourceFiles& sources,
                       const EncoderSource& encoder, ProgressSink* progress, bool test) {
  std::vector<TokenFile> files;
  for (const fs::path& file : sources.files) {
    SourceFiles one = sources;
    one.files = {file};
    files.push_back(open_one(data, one, encoder, progress, test));
  }
  return TokenFiles(std::move(files));
}

}  // namespace dstrain::text
