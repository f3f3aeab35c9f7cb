#include "engine/recipe/diagnostics.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "engine/recipe/text.h"

namespace dstrain {
namespace {

constexpr int kMaxErrors = 50;

std::string lines(const std::vector<Diagnostic>& diagnostics) {
  std::string text;
  for (const Diagnostic& diagnostic : diagnostics) {
    if (!text.empty()) text += '\n';
    text += format(diagnostic);
  }
  return text;
}

}  // namespace

std::string format(const Diagnostic& diagnostic) {
  std::string text = shown(diagnostic.file, 200);
  if (diagnostic.line > 0) text += fmt::format(":{}:{}", diagnostic.line, diagnostic.column);
  text += diagnostic.severity == Severity::error ? ": error: " : ": warning: ";
  if (!diagnostic.path.empty()) text += diagnostic.path + ": ";
  text += diagnostic.message;
  if (!diagnostic.hint.empty()) text += "\n  hint: " + diagnostic.hint;
  return text;
}

RecipeError::RecipeError(std::vector<Diagnostic> diagnostics)
    : Error(ErrorKind::usage, lines(diagnostics)), diagnostics_(std::move(diagnostics)) {}

void Diagnostics::error(Place place, std::string_view path, std::string message, std::string hint) {
  if (++num_errors_ <= kMaxErrors) {
    add(Severity::error, place, path, std::move(message), std::move(hint));
  }
}

void Diagnostics::warning(Place place, std::string_view path, std::string message,
                          std::string hint) {
  add(Severity::warning, place, path, std::move(message), std::move(hint));
}

void Diagnostics::add(Severity severity, Place place, std::string_view path, std::string message,
                      std::string hint) {
  const bool from_file = place.override_index < 0;
  std::string source =
      from_file ? file_ : "--set " + overrides_[static_cast<std::size_t>(place.override_index)];
  entries_.push_back({{.severity = severity,
                       .file = std::move(source),
                       .line = from_file ? place.line : 0,
                       .column = from_file ? place.column : 0,
                       .path = std::string(path),
                       .message = std::move(message),
                       .hint = std::move(hint)},
                      place,
                      entries_.size()});
}

std::string Diagnostics::origin(Place place) const {
  if (place.override_index >= 0) return "--set";
  if (place.line == 0) return "default";
  return fmt::format("{}:{}", file_, place.line);
}

std::vector<Diagnostic> Diagnostics::take(Severity severity) {
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.place.override_index, a.place.line, a.place.column, a.order) <
           std::tie(b.place.override_index, b.place.line, b.place.column, b.order);
  });
  std::vector<Diagnostic> taken;
  for (const Entry& entry : entries_) {
    if (entry.diagnostic.severity == severity) taken.push_back(entry.diagnostic);
  }
  if (severity == Severity::error && num_errors_ > kMaxErrors) {
    taken.push_back({.file = file_,
                     .message = fmt::format("{} more mistakes", num_errors_ - kMaxErrors),
                     .hint = "repair the ones above first"});
  }
  return taken;
}

}  // namespace dstrain
