#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/recipe/load.h"

namespace dstrain {

/// Where a value stands: a place in the file, or the override that gave it.
struct Place {
  int line = 0;  ///< from 1; 0: nowhere in the file
  int column = 0;
  int override_index = -1;  ///< index of the `--set` it came from; -1: the file
};

/// Collects the mistakes of one run. A hostile file cannot make it grow: beyond a limit mistakes
/// are only counted.
class Diagnostics {
 public:
  Diagnostics(std::string file, std::vector<std::string> overrides)
      : file_(std::move(file)), overrides_(std::move(overrides)) {}

  void error(Place place, std::string_view path, std::string message, std::string hint = {});
  void warning(Place place, std::string_view path, std::string message, std::string hint = {});

  [[nodiscard]] int num_errors() const { return num_errors_; }
  /// "recipes/quickstart.yaml:7", "--set", or "default" for a place that is none.
  [[nodiscard]] std::string origin(Place place) const;
  /// All errors or all warnings in reading order: the file from top to bottom, then the overrides.
  [[nodiscard]] std::vector<Diagnostic> take(Severity severity);

 private:
  void add(Severity severity, Place place, std::string_view path, std::string message,
           std::string hint);

  struct Entry {
    Diagnostic diagnostic;
    Place place;
    std::size_t order;  ///< in which it was reported
  };
  std::string file_;
  std::vector<std::string> overrides_;
  std::vector<Entry> entries_;
  int num_errors_ = 0;
};

}  // namespace dstrain
