#include "launcher/job/rank_log.h"

#include "engine/base/error.h"
#include "engine/base/output_file.h"

namespace dstrain::launcher {
namespace {

constexpr std::size_t kNumLastLines = 50;
constexpr std::size_t kMaxKeptLineBytes = 2000;
/// A line without end is cut into lines of this size rather than kept in memory.
constexpr std::size_t kMaxLogLineBytes = std::size_t{1} << 20;
/// As LibTorch writes it: "frame #3: at::native::... (0x1f + 0x7f.. in libtorch_cpu.so)".
constexpr std::string_view kBacktraceLine = "frame #";

}  // namespace

RankLog::RankLog(const std::filesystem::path& path, const Redactor& redactor,
                 BackgroundQueue& writer)
    : redactor_(&redactor), file_(std::make_shared<File>(path)), writes_(writer) {
  writes_.push(
      0, [file = file_] { file->fd = open_output_file(file->path, {.old = OldContent::append}); });
}

std::string RankLog::append(std::string_view bytes) {
  const auto newline = bytes.rfind('\n');
  if (newline == std::string_view::npos) {
    partial_.append(bytes);
    return partial_.size() > kMaxLogLineBytes ? finish() : std::string();
  }
  std::string lines = std::move(partial_);
  lines.append(bytes.substr(0, newline + 1));
  partial_.assign(bytes.substr(newline + 1));
  return commit(std::move(lines));
}

std::string RankLog::finish() {
  if (partial_.empty()) return {};
  std::string lines = std::move(partial_);
  partial_.clear();
  lines.push_back('\n');
  return commit(std::move(lines));
}

std::string RankLog::commit(std::string lines) {
  redactor_->apply(lines);
  writes_.push(lines.size(),
               [file = file_, lines] { write_fully(file->fd.get(), lines, file->path); });
  std::string_view rest = lines;
  while (!rest.empty()) {
    const auto newline = rest.find('\n');
    if (!rest.starts_with(kBacktraceLine))
      tail_.emplace_back(rest.substr(0, std::min(newline, kMaxKeptLineBytes)));
    if (tail_.size() > kNumLastLines) tail_.pop_front();
    rest.remove_prefix(newline + 1);
  }
  return lines;
}

}  // namespace dstrain::launcher
