#include "engine/recipe/tree.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <charconv>
#include <sstream>
#include <utility>

#include "engine/recipe/text.h"
#include "engine/recipe/unclosed.h"

namespace dstrain {
namespace {

/// yaml-cpp keeps every token of an unfinished flow value: 1 MiB of '[' would cost 0.2 s and 150
/// MB.
constexpr std::size_t kMaxContent = std::size_t{64} << 10;
constexpr std::size_t kMaxDepth = 16;
constexpr int kMaxValues = 4096;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

/// Leaves the parser where reading on makes no sense; the reason is already reported.
struct Stop {};

/// Builds the tree from the parser's events. Events come before yaml-cpp shares or copies a node,
/// so an alias bomb never unfolds, and doubled keys are still both there.
class TreeBuilder final : public YAML::EventHandler {
 public:
  TreeBuilder(Diagnostics& diagnostics, int override_index)
      : diagnostics_(diagnostics), override_index_(override_index) {}

  [[nodiscard]] std::optional<Node> take_root() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (!root_) return;
    report(place(mark), "a second document, or text after the end of the recipe, begins here",
           "a recipe is one YAML map; remove what follows it");
    throw Stop{};
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    add({Node::Kind::null, place(mark)});
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    report(place(mark), "an alias (*name) is not read in recipes", "write the value out");
    add({Node::Kind::refused, place(mark)});
  }
  void OnAnchor(const YAML::Mark& mark, const std::string& name) override {
    if (name.empty()) return;
    report(place(mark), fmt::format("an anchor (&{}) is not read in recipes", shown(name)),
           "remove it; a value that starts with & needs quotes");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                const std::string& value) override {
    refuse_tag(mark, tag);
    add({Node::Kind::scalar, place(mark), value, tag == "!"});
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    refuse_tag(mark, tag);
    open({Node::Kind::list, place(mark)});
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    refuse_tag(mark, tag);
    open({Node::Kind::map, place(mark)});
  }
  void OnMapEnd() override { close(); }

 private:
  struct Frame {
    Node node;
    bool has_key = false;  ///< a key was read, its value comes next
    bool keep = true;      ///< false: the key was refused, so its value is dropped
    Entry pending = {};
  };

  [[nodiscard]] Place place(const YAML::Mark& mark) const {
    return {.line = mark.line + 1, .column = mark.column + 1, .override_index = override_index_};
  }
  void report(Place where, std::string message, std::string hint) {
    diagnostics_.error(where, {}, std::move(message), std::move(hint));
  }
  void refuse_tag(const YAML::Mark& mark, const std::string& tag) {
    if (tag.empty() || tag == "?" || tag == "!") return;
    report(place(mark), fmt::format("a tag ({}) is not read in recipes", shown(tag)),
           "remove it; a value that starts with ! needs quotes");
  }

  void count(Place where) {
    if (++num_values_ <= kMaxValues) return;
    report(where, fmt::format("more than {} values", kMaxValues), "a recipe has about a hundred");
    throw Stop{};
  }
  void open(Node node) {
    count(node.place);
    if (frames_.size() >= kMaxDepth) {
      report(node.place, fmt::format("nested deeper than {} levels", kMaxDepth),
             "a recipe has at most four levels");
      throw Stop{};
    }
    frames_.push_back({.node = std::move(node)});
  }
  void close() {
    Node node = std::move(frames_.back().node);
    frames_.pop_back();
    attach(std::move(node));
  }
  void add(Node node) {
    count(node.place);
    attach(std::move(node));
  }

  void attach(Node node) {
    if (frames_.empty()) {
      root_ = std::move(node);
    } else if (Frame& top = frames_.back(); top.node.kind == Node::Kind::list) {
      top.node.items.push_back(std::move(node));
    } else if (!top.has_key) {
      top.keep = accept_key(top.node, node);
      top.has_key = true;
      top.pending = {.key = std::move(node.text), .place = node.place, .value = {}};
    } else {
      top.has_key = false;
      if (!top.keep) return;
      top.pending.value = std::move(node);
      top.node.entries.push_back(std::move(top.pending));
    }
  }

  bool accept_key(const Node& map, const Node& key) {
    if (key.kind == Node::Kind::refused) return false;
    if (key.kind != Node::Kind::scalar) {
      report(key.place, "a key must be one word", "write 'key: value'");
      return false;
    }
    if (key.text == "<<") {
      report(key.place, "a merge key (<<) is not read in recipes", "write the keys out");
      return false;
    }
    const auto same = [&](const Entry& entry) { return entry.key == key.text; };
    const auto first = std::find_if(map.entries.begin(), map.entries.end(), same);
    if (first == map.entries.end()) return true;
    report(key.place,
           fmt::format("'{}' is given twice; first in line {}", shown(key.text), first->place.line),
           "keep one of the two");
    return false;
  }

  Diagnostics& diagnostics_;
  int override_index_;
  int num_values_ = 0;
  std::vector<Frame> frames_;
  std::optional<Node> root_;
};

Place place_at(std::string_view text, std::size_t at) {
  const std::string_view before = text.substr(0, at);
  const auto line = std::count(before.begin(), before.end(), '\n');
  const std::size_t start = before.rfind('\n') + 1;  // npos + 1 is 0
  return {.line = static_cast<int>(line) + 1, .column = static_cast<int>(at - start) + 1};
}

/// Position of the first tab that indents a line; npos without one.
std::size_t first_indenting_tab(std::string_view text) {
  bool indentation = true;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (indentation && text[i] == '\t') {
      const std::size_t next = text.find_first_not_of(" \t\r", i);
      if (next == std::string_view::npos) return next;
      if (text[next] != '\n' && text[next] != '#') return i;
      i = next - 1;
    } else {
      indentation = text[i] == '\n' || (indentation && text[i] == ' ');
    }
  }
  return std::string_view::npos;
}

/// Bytes in lines that are neither blank nor a comment.
std::size_t content_bytes(std::string_view text) {
  std::size_t bytes = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::size_t first = text.substr(0, end).find_first_not_of(" \t\r");
    if (first != std::string_view::npos && text[first] != '#') bytes += end;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return bytes;
}

/// The first control character beside tabs and line ends; empty when there is none.
std::string_view first_control(std::string_view text) {
  std::string_view found = first_unprintable(text);
  while (found == "\r") {
    text.remove_prefix(static_cast<std::size_t>(found.data() - text.data()) + 1);
    found = first_unprintable(text);
  }
  return found;
}

/// What yaml-cpp would accept or misread in silence; reported before it sees the text.
bool is_readable(std::string_view text, Diagnostics& diagnostics) {
  if (text.size() > kMaxRecipeBytes) {
    diagnostics.error({}, {}, fmt::format("{} bytes; a recipe has at most 256 KiB", text.size()),
                      "is this the recipe?");
    return false;
  }
  if (content_bytes(text) > kMaxContent) {
    diagnostics.error({}, {}, "more than 64 KiB besides comments", "a recipe has about 1 KiB");
    return false;
  }
  if (const std::size_t at = first_invalid_utf8(text); at != std::string_view::npos) {
    diagnostics.error(place_at(text, at), {}, "not UTF-8 text", "save the file as UTF-8");
    return false;
  }
  if (const std::string_view found = first_control(text); !found.empty()) {
    diagnostics.error(place_at(text, static_cast<std::size_t>(found.data() - text.data())), {},
                      fmt::format("control character {}", shown(found)), "a recipe is plain text");
    return false;
  }
  if (const std::size_t at = first_indenting_tab(text); at != std::string_view::npos) {
    diagnostics.error(place_at(text, at), {}, "a tab indents this line", "indent with spaces");
    return false;
  }
  return true;
}

std::string_view line_of(std::string_view text, int line) {
  for (; line > 1; --line) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) return {};
    text.remove_prefix(end + 1);
  }
  return text.substr(0, text.find('\n'));
}

/// The parser's complaint in its own words, with a hint where the usual cause is known.
void report_syntax(const YAML::Exception& failure, std::string_view text, int override_index,
                   Diagnostics& diagnostics) {
  const Place where = {.line = std::max(failure.mark.line, 0) + 1,
                       .column = std::max(failure.mark.column, 0) + 1,
                       .override_index = override_index};
  std::string hint = "is a quote, a bracket or an indentation wrong here or in the line above?";
  if (line_of(text, where.line).find("${") != std::string_view::npos) {
    hint = "put text with ${...} in double quotes";
  }
  diagnostics.error(where, {}, fmt::format("this is not YAML: {}", shown(failure.msg, 120)), hint);
}

void report_unclosed(const Unclosed& found, std::string_view text, int override_index,
                     Diagnostics& diagnostics) {
  Place where = place_at(text, found.at);
  where.override_index = override_index;
  const char opening = found.opening;
  if (opening == '"' || opening == '\'') {
    diagnostics.error(
        where, {}, "the quote that opens here is not closed in its line",
        "close it; a text that begins with a quote goes into quotes of the other kind");
  } else {
    diagnostics.error(where, {}, fmt::format("the {} that opens here is never closed", opening),
                      fmt::format("close it with {}", opening == '[' ? ']' : '}'));
  }
}

/// Parses text that `is_readable`. Nothing when the parser or the builder gave up, or when there is
/// no value.
std::optional<Node> parse(std::string_view text, int override_index, Diagnostics& diagnostics) {
  if (const auto unclosed = find_unclosed(text)) {
    report_unclosed(*unclosed, text, override_index, diagnostics);
    return std::nullopt;
  }
  TreeBuilder builder(diagnostics, override_index);
  std::istringstream stream{std::string(text)};
  try {
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) return std::nullopt;
    // Only to see whether there is more: the builder refuses a second document.
    parser.HandleNextDocument(builder);
  } catch (const Stop&) {
    return std::nullopt;
  } catch (const YAML::Exception& failure) {
    report_syntax(failure, text, override_index, diagnostics);
    return std::nullopt;
  }
  return builder.take_root();
}

}  // namespace

Node::Node() = default;
Node::Node(Kind kind_in, Place place_in, std::string text_in, bool quoted_in)
    : kind(kind_in), place(place_in), text(std::move(text_in)), quoted(quoted_in) {}

std::optional<Node> read_tree(std::string_view text, Diagnostics& diagnostics) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  if (!is_readable(text, diagnostics)) return std::nullopt;
  const int errors_before = diagnostics.num_errors();
  std::optional<Node> root = parse(text, -1, diagnostics);
  if (!root && diagnostics.num_errors() == errors_before) {
    diagnostics.error({}, {}, "the file is empty",
                      "see recipes/quickstart.yaml for one that works");
  } else if (root && root->kind != Node::Kind::map && root->kind != Node::Kind::refused) {
    diagnostics.error(root->place, {}, "a recipe is a map of sections",
                      "begin with 'model:', see recipes/quickstart.yaml");
    return std::nullopt;
  }
  return root;
}

void apply_override(Node& root, const std::string& assignment, int index,
                    Diagnostics& diagnostics) {
  const Place place = {.override_index = index};
  const std::size_t equals = assignment.find('=');
  const std::string path = assignment.substr(0, equals);
  const auto in_key = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
  };
  if (equals == std::string::npos || path.empty() || path.front() == '.' || path.back() == '.' ||
      path.find("..") != std::string::npos || !std::all_of(path.begin(), path.end(), in_key) ||
      static_cast<std::size_t>(std::count(path.begin(), path.end(), '.')) >= kMaxDepth) {
    diagnostics.error(place, {}, "not of the form path.to.key=value",
                      "for example --set optimizer.lr=3e-4");
    return;
  }
  const std::string text = assignment.substr(equals + 1);
  Node value(Node::Kind::scalar, place, "", true);
  if (!is_plain_text(text) || text.size() > kMaxContent) {
    diagnostics.error(place, path, "the value is not one line of UTF-8 text of at most 64 KiB");
    return;
  }
  if (!text.empty()) {
    const int errors_before = diagnostics.num_errors();
    std::optional<Node> parsed = parse(text, index, diagnostics);
    if (diagnostics.num_errors() > errors_before) return;
    value = parsed ? std::move(*parsed) : Node{};
  }
  if (value.kind == Node::Kind::map) {
    diagnostics.error(place, path, "the value is a map; --set takes a single value or a [list]",
                      "give each key its own --set; put text with ': ' in double quotes");
    return;
  }
  value.place = place;
  for (Node& item : value.items) item.place = place;

  Node* node = &root;
  std::size_t from = 0;
  while (true) {
    const std::size_t dot = path.find('.', from);
    const std::string key = path.substr(from, dot == std::string::npos ? dot : dot - from);
    const auto same = [&](const Entry& entry) { return entry.key == key; };
    auto entry = std::find_if(node->entries.begin(), node->entries.end(), same);
    if (entry == node->entries.end()) {
      node->entries.push_back({.key = key, .place = place, .value = {Node::Kind::map, place}});
      entry = node->entries.end() - 1;
    }
    if (dot == std::string::npos) {
      entry->value = std::move(value);
      return;
    }
    if (entry->value.kind == Node::Kind::list) {
      // An item by its number, then a key of it.
      const std::size_t end = path.find('.', dot + 1);
      const std::string number = path.substr(dot + 1, end - dot - 1);
      const char* last = number.data() + number.size();
      std::size_t item = 0;
      const auto parsed = std::from_chars(number.data(), last, item);
      std::vector<Node>& items = entry->value.items;
      if (end == std::string::npos || parsed.ec != std::errc() || parsed.ptr != last ||
          item >= items.size() || items[item].kind != Node::Kind::map) {
        diagnostics.error(place, path,
                          fmt::format("{} is a list of {} items in the recipe", path.substr(0, dot),
                                      items.size()),
                          "give the number of a section in it, from 0, and a key of it");
        return;
      }
      node = &items[item];
      from = end + 1;
      continue;
    }
    if (entry->value.kind != Node::Kind::map) {
      diagnostics.error(place, path,
                        fmt::format("{} is not a section in the recipe", path.substr(0, dot)),
                        "give the path of a key, as in REFERENCE.md");
      return;
    }
    node = &entry->value;
    from = dot + 1;
  }
}

}  // namespace dstrain
