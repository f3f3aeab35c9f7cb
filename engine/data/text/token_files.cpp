#include "engine/data/text/token_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "engine/base/error.h"

namespace dstrain::text {
namespace {

/// Adds what the next file says to what those before it say.
void add(TokenFileSummary& all, const TokenFileSummary& next) {
  constexpr std::size_t kProblemsKept = 20;
  const std::int64_t before = all.num_records;
  for (const std::int64_t first : next.first_records) all.first_records.push_back(before + first);
  all.num_records += next.num_records;
  all.num_problems += next.num_problems;
  for (const Problem& problem : next.problems) {
    if (all.problems.size() < kProblemsKept)
      all.problems.push_back({.record = before + problem.record, .text = problem.text});
  }
  all.tokenizer = next.tokenizer;
  all.set = next.set;
  all.form = next.form;
  all.test = next.test;
  all.pad = next.pad;
  all.end = next.end;
  all.marked = next.marked;
  if (next.highest > all.highest) {
    all.highest = next.highest;
    all.highest_record = before + next.highest_record;
  }
  if (all.special_texts == 0) all.special_record = before + next.special_record;
  all.special_texts += next.special_texts;
  if (all.shortened == 0) all.shortened_record = before + next.shortened_record;
  all.shortened += next.shortened;
}

}  // namespace

TokenFiles::TokenFiles(std::vector<TokenFile> files) : files_(std::move(files)), firsts_{0} {
  DSTRAIN_CHECK(!files_.empty(), "no token file");
  for (const TokenFile& file : files_) {
    records_.push_back(summary_.num_records);
    firsts_.push_back(firsts_.back() + file.size());
    add(summary_, file.summary());
  }
}

std::pair<std::size_t, std::int64_t> TokenFiles::place(std::int64_t i) const {
  DSTRAIN_CHECK(i >= 0 && i < size(), "no such sample");
  const auto next = std::ranges::upper_bound(firsts_, i);
  const auto file = static_cast<std::size_t>(next - firsts_.begin() - 1);
  return {file, i - firsts_[file]};
}

TokenFiles::Sample TokenFiles::sample(std::int64_t i) const {
  const auto [file, at] = place(i);
  const TokenFile::Sample& found = files_[file].sample(at);
  return {.group = found.group,
          .response = found.response,
          .record = records_[file] + std::int64_t{found.record}};
}

std::int64_t TokenFiles::length(std::int64_t i) const {
  const auto [file, at] = place(i);
  return files_[file].length(at);
}

void TokenFiles::copy(std::int64_t i, std::span<std::int64_t> tokens,
                      std::span<std::uint8_t> trained) const {
  const auto [file, at] = place(i);
  files_[file].copy(at, tokens, trained);
}

std::string TokenFiles::keys() const {
  std::string keys;
  for (const TokenFile& file : files_) keys.append(file.key().begin(), file.key().end());
  return keys;
}

TokenFiles open_prepared(const std::vector<std::filesystem::path>& files,
                         const std::string& tokenizer) {
  std::vector<TokenFile> opened;
  const auto refuse = [](const std::filesystem::path& file, const std::string& what,
                         const char* hint) {
    throw Error(ErrorKind::data, fmt::format("{}: {}", file.string(), what), hint);
  };
  for (const std::filesystem::path& path : files) {
    std::string problem;
    auto file = TokenFile::open_any(path, problem);
    if (!file) refuse(path, problem, "fetch it again, or prepare its source again");
    const TokenFileSummary& summary = file->summary();
    if (summary.tokenizer != tokenizer)
      refuse(
          path, "its tokens are of another tokenizer",
          "name the tokenizer that it was prepared with in data.tokenizer, or prepare its source "
          "with this one");
    if (summary.set == kPairsSet)
      refuse(path, "it holds pairs of answers, which train by preference.loss only",
             "use data.name: chat with the files that it was prepared from");
    if (!opened.empty() && summary.form != opened.front().summary().form)
      refuse(
          path,
          fmt::format("its samples have another form ({}) than those of {} ({}), or other "
                      "templates",
                      summary.set, files.front().filename().string(), opened.front().summary().set),
          "put each form into a folder of its own, and list both in data.mixture");
    opened.push_back(std::move(*file));
  }
  return TokenFiles(std::move(opened));
}

}  // namespace dstrain::text
