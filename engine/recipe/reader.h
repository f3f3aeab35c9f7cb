#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/recipe/describe.h"
#include "engine/recipe/tree.h"

namespace dstrain {

/// Fills the described structs from a tree and reports every key and value that does not fit.
class YamlReader final : public Visitor {
 public:
  YamlReader(const Node& root, Diagnostics& diagnostics);

  void read(Recipe& recipe);

  /// Place of a field or section that was given; nullptr where the default stands.
  [[nodiscard]] const Place* given(std::string_view path) const;
  /// The place of the field, else of the section that should hold it.
  [[nodiscard]] Place place(std::string_view path) const;
  /// False for a field whose value was refused or that is required and missing.
  [[nodiscard]] bool usable(std::string_view path) const { return !failed_.contains(path); }
  /// Environment variables that went into the value of a field.
  [[nodiscard]] const std::vector<std::string>* variables(std::string_view path) const;

 private:
  void visit(std::string_view name, const Slot& slot, const Field& about) override;
  void enter(std::string_view name, std::string_view text) override;
  void leave() override;
  void visit_list(std::string_view name, const ListSlot& list, std::string_view text) override;

  struct Level {
    const Node* map = nullptr;  ///< nullptr: the section is not given
    bool refused = false;       ///< the section is no map, which is reported already
    Place place = {};
    std::string path = {};
    std::vector<std::string_view> known = {};
  };
  struct Unknown {
    Place place;
    std::string section;
    std::string key;
    std::vector<std::string_view> known;
  };

  [[nodiscard]] std::string join(std::string_view name) const;
  [[nodiscard]] const Entry* find(std::string_view name);
  /// The entry of the present section; nullptr when the key is not given.
  [[nodiscard]] const Entry* entry(std::string_view name) const;
  void report_unknown();

  bool read_value(const std::string& path, const Node& node, const Slot& slot, const Field& about);
  bool read_number(const std::string& path, const Node& node, const Field& about, long min,
                   long max, long& value);
  bool read_number(const std::string& path, const Node& node, const Field& about, double& value);
  bool read_choice(const std::string& path, const Node& node, std::span<const Choice> all,
                   int& value);
  bool read_string(const std::string& path, const Node& node, const Field& about,
                   std::string& value);
  bool read_interval(const std::string& path, const Node& node, const Field& about,
                     Interval& value);
  bool in_range(const std::string& path, const Node& node, const Field& about, double value);
  /// A scalar that may be a number or a truth value; reports quotes and other kinds of node.
  bool is_unquoted(const std::string& path, const Node& node, const char* wanted);
  bool refuse(const std::string& path, const Node& node, std::string message, std::string hint);

  Diagnostics& diagnostics_;
  std::vector<Level> levels_;
  std::vector<Unknown> unknown_;
  std::vector<std::string> paths_;
  std::map<std::string, Place, std::less<>> given_;
  std::set<std::string, std::less<>> failed_;
  std::map<std::string, std::vector<std::string>, std::less<>> variables_;
};

}  // namespace dstrain
