#include "engine/import/script_command.h"

#include <algorithm>
#include <filesystem>
#include <set>

namespace dstrain::importing {
namespace {

using Variables = std::map<std::string, std::string>;
using Words = std::vector<std::string>;

/// Variables that name each other do not grow without bound.
constexpr std::size_t kMaxGrowth = 1 << 14;

bool is_name(char c, bool first) {
  return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         (!first && c >= '0' && c <= '9');
}

/// Length of the name at the text's begin; 0: none.
std::size_t name_size(std::string_view text) {
  std::size_t size = 0;
  while (size < text.size() && is_name(text[size], size == 0)) ++size;
  return size;
}

/// Whether a word sets a variable: NAME=VALUE.
bool sets_variable(std::string_view word) {
  const std::size_t size = name_size(word);
  return size > 0 && size < word.size() && word[size] == '=';
}

/// A product of numbers and variables as $((...)) has it; empty: not known.
std::string product(std::string_view text, const Variables& variables) {
  long result = 1;
  while (true) {
    const std::size_t end = std::min(text.find('*'), text.size());
    std::string part(text.substr(0, end));
    std::erase_if(part, [](char c) { return c == ' ' || c == '$' || c == '{' || c == '}'; });
    if (const auto found = variables.find(part); found != variables.end()) part = found->second;
    const bool digits = !part.empty() && part.size() < 7 &&
                        std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    if (!digits || result > (1L << 30)) return {};
    result *= std::stol(part);
    if (end == text.size()) return std::to_string(result);
    text.remove_prefix(end + 1);
  }
}

/// Cuts a line into simple commands, as a shell does, with variables filled in.
class LineCutter {
 public:
  LineCutter(std::string_view text, const Variables& variables)
      : text_(text), variables_(variables) {}

  std::vector<Words> cut() {
    while (at_ < text_.size()) step(text_[at_]);
    end_command();
    return std::move(commands_);
  }

 private:
  void step(char c) {
    constexpr std::string_view kEnds = ";|&(){}\n";
    if (c == ' ' || c == '\t' || c == '\r') {
      end_word();
      ++at_;
    } else if (c == '#' && !open_) {
      at_ = text_.size();
    } else if (c == '\'') {
      single();
    } else if (c == '"') {
      twice();
    } else if (c == '$') {
      dollar(false);
    } else if (c == '\\') {
      if (++at_ < text_.size()) add(text_[at_++]);
    } else if (c == '>' || c == '<') {
      redirection();
    } else if (kEnds.find(c) != std::string_view::npos && !(open_ && (c == '{' || c == '}'))) {
      end_command();
      ++at_;
    } else {
      add(c);
      ++at_;
    }
  }
  void add(char c) {
    word_ += c;
    open_ = true;
  }
  void single() {
    open_ = true;
    const std::size_t end = std::min(text_.find('\'', at_ + 1), text_.size());
    word_ += text_.substr(at_ + 1, end - at_ - 1);
    at_ = std::min(end + 1, text_.size());
  }
  void twice() {
    open_ = true;
    for (++at_; at_ < text_.size() && text_[at_] != '"';) {
      if (text_[at_] == '$') {
        dollar(true);
        continue;
      }
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) ++at_;
      word_ += text_[at_++];
    }
    at_ = std::min(at_ + 1, text_.size());
  }
  /// $NAME, ${NAME}, $((A * B)); what is not known stays as it is.
  void dollar(bool quoted) {
    const std::string_view rest = text_.substr(at_);
    std::size_t size = 1;
    std::string value;  // of what is known; "" and false: not known
    bool known = false;
    if (rest.starts_with("$(")) {
      size = closing(rest);
      if (rest.starts_with("$((") && rest.substr(0, size).ends_with("))")) {
        value = product(rest.substr(3, size - 5), variables_);
        known = !value.empty();
      }
    } else {
      const bool braces = rest.starts_with("${");
      const std::string_view name = rest.substr(braces ? 2 : 1);
      const std::size_t length = name_size(name);
      const std::size_t end = braces ? std::min(rest.find('}'), rest.size() - 1) : length;
      size = braces ? end + 1 : 1 + length;
      const bool plain = length > 0 && (!braces || length + 2 == end);
      const auto found = variables_.find(std::string(name.substr(0, length)));
      known = plain && found != variables_.end();
      if (known) value = found->second;
    }
    if (known && (grown_ += value.size()) <= kMaxGrowth && !quoted) return split(value, size);
    open_ = true;
    word_ += known && grown_ <= kMaxGrowth ? value : std::string(rest.substr(0, size));
    at_ += size;
  }
  /// The value of an unquoted variable is words of its own.
  void split(const std::string& value, std::size_t size) {
    at_ += size;
    for (const char c : value) {
      if (c == ' ' || c == '\t' || c == '\n')
        end_word();
      else
        add(c);
    }
  }
  /// Length of "$(...)" at the begin of `rest`.
  static std::size_t closing(std::string_view rest) {
    int depth = 0;
    for (std::size_t i = 1; i < rest.size(); ++i) {
      if (rest[i] == '(') ++depth;
      if (rest[i] == ')' && --depth == 0) return i + 1;
    }
    return rest.size();
  }
  /// Leaves out ">file", "2>&1" and the like.
  void redirection() {
    if (std::ranges::all_of(word_, [](char c) { return c >= '0' && c <= '9'; })) {
      word_.clear();
      open_ = false;
    } else {
      end_word();
    }
    while (at_ < text_.size() &&
           (text_[at_] == '>' || text_[at_] == '<' || text_[at_] == '&' || text_[at_] == ' '))
      ++at_;
    while (at_ < text_.size() &&
           std::string_view(" \t;|&").find(text_[at_]) == std::string_view::npos)
      ++at_;
  }
  void end_word() {
    if (open_) words_.push_back(std::move(word_));
    word_.clear();
    open_ = false;
  }
  void end_command() {
    end_word();
    if (!words_.empty()) commands_.push_back(std::move(words_));
    words_.clear();
  }

  std::string_view text_;
  const Variables& variables_;
  std::size_t at_ = 0;
  std::string word_;
  bool open_ = false;
  std::size_t grown_ = 0;  ///< bytes of variables filled in
  Words words_;
  std::vector<Words> commands_;
};

std::string base_name(const std::string& word) {
  return std::filesystem::path(word).filename().string();
}

/// Whether the command only speaks of programs: pip install deepspeed.
bool names_programs(const Words& words) {
  constexpr std::string_view kSuch[] = {"pip",    "pip3", "conda",  "mamba",   "module", "ml",
                                        "which",  "echo", "printf", "command", "type",   "cd",
                                        "source", ".",    "uv",     "git",     "spack",  "for"};
  if (words.size() > 1 && words[1] == "run") return false;  // conda run, uv run
  const bool module = words.size() > 2 && words[1] == "-m" && words[2] == "pip";
  return module || std::ranges::find(kSuch, base_name(words[0])) != std::end(kSuch);
}

/// Position of the launcher among the words of a command; their number: none.
std::size_t launcher_at(const Words& words) {
  constexpr std::string_view kModules[] = {"torch.distributed.run", "torch.distributed.launch",
                                           "deepspeed.launcher.runner",
                                           "accelerate.commands.launch"};
  if (names_programs(words)) return words.size();
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string name = base_name(words[i]);
    if (name == "torchrun" || name == "deepspeed" || name == "accelerate-launch") return i;
    if (name == "accelerate" && i + 1 < words.size() && words[i + 1] == "launch") return i;
    if (name.starts_with("python") && i + 2 < words.size() && words[i + 1] == "-m" &&
        std::ranges::find(kModules, words[i + 2]) != std::end(kModules))
      return i;
  }
  return words.size();
}

std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

/// Reads a script line by line.
class ScriptReader {
 public:
  explicit ScriptReader(Variables variables) : variables_(std::move(variables)) {}

  void read(std::string_view line, int first, int last, int depth) {
    for (const Words& words : LineCutter(line, variables_).cut()) {
      if (take_variables(words)) continue;
      const std::size_t at = launcher_at(words);
      if (at < words.size())
        take_command(words, at, first, last);
      else if (depth < 2)
        read_inner(words, first, last, depth);
    }
  }
  std::vector<ScriptCommand> commands;

 private:
  /// NAME=VALUE and export NAME=VALUE, alone on their line.
  bool take_variables(const Words& words) {
    const std::size_t begin = words[0] == "export" || words[0] == "declare" ? 1 : 0;
    if (begin == words.size() ||
        !std::ranges::all_of(words.begin() + static_cast<long>(begin), words.end(), sets_variable))
      return false;
    for (std::size_t i = begin; i < words.size(); ++i) {
      const std::size_t equal = words[i].find('=');
      const std::string name = words[i].substr(0, equal), value = words[i].substr(equal + 1);
      // A value that only a shell knows, or a second one, leaves the variable open.
      const bool open =
          value.find("$(") != std::string::npos || value.find('`') != std::string::npos;
      const auto [found, fresh] = variables_.emplace(name, value);
      if (open || (!fresh && found->second != value)) open_.insert(name);
      if (open_.contains(name)) variables_.erase(name);
    }
    return true;
  }
  /// The script of `bash -c '...'`.
  void read_inner(const Words& words, int first, int last, int depth) {
    bool shell = false;
    for (std::size_t i = 0; i < words.size(); ++i) {
      const std::string name = base_name(words[i]);
      shell = shell || name == "bash" || name == "sh";
      const bool script = shell && i + 1 < words.size() && words[i].starts_with('-') &&
                          words[i].ends_with('c') && !words[i].starts_with("--");
      if (script) return read(words[i + 1], first, last, depth + 1);
    }
  }
  void take_command(const Words& words, std::size_t at, int first, int last) {
    std::string text;
    for (const std::string& word : words) {
      if (!sets_variable(word)) break;
      text += quoted(word) + " ";
    }
    for (std::size_t i = at; i < words.size(); ++i) text += quoted(words[i]) + " ";
    text.pop_back();
    commands.push_back({text, first, last});
  }

  Variables variables_;
  std::set<std::string> open_;
};

}  // namespace

std::vector<ScriptCommand> launcher_commands(const std::vector<BatchLine>& body,
                                             std::map<std::string, std::string> variables) {
  ScriptReader reader(std::move(variables));
  for (std::size_t i = 0; i < body.size(); ++i) {
    if (!body[i].why.empty()) continue;
    const int first = body[i].line;
    std::string line = body[i].text;
    while (line.ends_with('\\') && i + 1 < body.size() && body[i + 1].line == body[i].line + 1) {
      line.back() = ' ';
      line += body[++i].text;
    }
    reader.read(line, first, body[i].line, 0);
  }
  return std::move(reader.commands);
}

}  // namespace dstrain::importing
