#include "engine/import/batch_script.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "engine/import/key_rule.h"
#include "engine/recipe/text.h"

namespace dstrain::importing {
namespace {

constexpr std::string_view kBlanks = " \t\v\f\r";
bool blank(char c) { return kBlanks.find(c) != std::string_view::npos; }

/// Whether the text begins with a separator of the parts of a heterogeneous job.
bool begins_part(std::string_view text) {
  for (const std::string_view word : {"hetjob", "packjob"}) {
    const bool same = text.size() >= word.size() &&
                      std::equal(word.begin(), word.end(), text.begin(), [](char a, char b) {
                        return a == (b >= 'A' && b <= 'Z' ? b + 32 : b);
                      });
    if (same && (text.size() == word.size() || blank(text[word.size()]))) return true;
  }
  return false;
}

/// Reads the words of one #SBATCH line.
class LineReader {
 public:
  LineReader(std::string_view text, int line, const BatchMistake& mistake,
             std::vector<BatchWord>& words)
      : text_(text), line_(line), mistake_(mistake), words_(words) {}

  /// Stops at a mistake.
  void read() {
    while (next_word()) {
    }
  }

 private:
  bool refuse(std::string message, std::string hint) {
    mistake_(line_, std::move(message), std::move(hint));
    return false;
  }

  bool next_word() {
    while (at_ < text_.size() && blank(text_[at_])) ++at_;
    if (at_ == text_.size() || text_[at_] == '#') return false;
    const std::string_view rest = text_.substr(at_);
    if (begins_part(rest))
      return refuse("a job of several parts (hetjob) has no counterpart", "use nodes of one kind");
    if (rest[0] == ':') return refuse("sbatch takes no word that begins with ':'", "take it out");
    std::string word;
    bool quotes = false;
    for (; at_ < text_.size() && text_[at_] != '#' && !blank(text_[at_]);) {
      const char c = text_[at_];
      if (c == '"' || c == '\'') {
        if (!quoted(word)) return false;
        quotes = true;
      } else if (c == '\\') {
        if (at_ + 1 < text_.size() && blank(text_[at_ + 1]))
          return refuse("versions of Slurm differ over a backslash before a blank",
                        "write the value in quotes");
        take_escaped(word);
      } else {
        word += text_[at_++];
      }
    }
    if (word.empty() && !quotes) return false;  // a backslash at the line's end
    if (word.empty()) return refuse("sbatch ends the line at an empty word", "take the word out");
    words_.push_back({std::move(word), line_});
    return true;
  }

  void take_escaped(std::string& word) {
    if (++at_ < text_.size()) word += text_[at_++];
  }

  bool quoted(std::string& word) {
    const char mark = text_[at_++];
    while (at_ < text_.size() && text_[at_] != mark) {
      if (text_[at_] == '\\')
        take_escaped(word);
      else
        word += text_[at_++];
    }
    if (at_ == text_.size())
      return refuse(fmt::format("a quote ({}) without its end", mark), "close it");
    ++at_;
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int line_;
  const BatchMistake& mistake_;
  std::vector<BatchWord>& words_;
};

/// Reports what sbatch says of a whole script.
void check_form(std::string_view text, const BatchMistake& mistake) {
  if (!text.starts_with("#!"))
    mistake(1, "sbatch takes only a script whose first line begins with #!",
            "begin it with #!/bin/bash");
  if (const std::size_t at = text.find("\r\n"); at != std::string_view::npos)
    mistake(
        static_cast<int>(std::count(text.begin(), text.begin() + static_cast<long>(at), '\n')) + 1,
        "sbatch takes no lines that end as on DOS", "rewrite it with dos2unix");
}

}  // namespace

BatchScript read_batch_script(std::string_view text, const BatchMistake& mistake) {
  BatchScript script;
  check_form(text, mistake);
  bool ended = false;  // by the first command
  int number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    const bool options = line.starts_with("#SBATCH") || line.starts_with("#SLURM");
    if (options && !ended) {
      LineReader(line.substr(line.starts_with("#SBATCH") ? 7 : 6), number, mistake, script.words)
          .read();
      continue;
    }
    if (line.starts_with("#PBS") || line.starts_with("#BSUB")) {
      mistake(number, "sbatch translates lines of PBS and LSF, too; the import does not",
              "write it as #SBATCH, or take it out");
      continue;
    }
    const std::size_t first = std::min(line.find_first_not_of(kBlanks), line.size());
    line.remove_prefix(first);
    while (!line.empty() && blank(line.back())) line.remove_suffix(1);
    if (line.empty()) continue;
    if (line.starts_with("#SBATCH") || line.starts_with("#SLURM")) {
      script.body.push_back({std::string(line), number,
                             ended ? "behind the first command: sbatch does not read it"
                                   : "not at the start of its line: sbatch does not read it"});
    } else if (line[0] != '#') {
      ended = true;
      script.body.push_back({std::string(line), number});
    }
  }
  return script;
}

namespace {

constexpr std::pair<char, std::string_view> kShort[] = {
    {'A', "account"},       {'a', "array"},      {'B', "extra_node_info"},
    {'b', "begin"},         {'C', "constraint"}, {'c', "cpus_per_task"},
    {'D', "chdir"},         {'d', "dependency"}, {'e', "error"},
    {'F', "nodefile"},      {'G', "gpus"},       {'H', "hold"},
    {'h', "help"},          {'i', "input"},      {'J', "job_name"},
    {'k', "no_kill"},       {'L', "licenses"},   {'M', "clusters"},
    {'m', "distribution"},  {'N', "nodes"},      {'n', "ntasks"},
    {'O', "overcommit"},    {'o', "output"},     {'p', "partition"},
    {'Q', "quiet"},         {'q', "qos"},        {'S', "core_spec"},
    {'s', "oversubscribe"}, {'t', "time"},       {'V', "version"},
    {'v', "verbose"},       {'W', "wait"},       {'w', "nodelist"},
    {'x', "exclude"}};

enum class Wants { none, maybe, value };

Wants wants(std::string_view name) {
  constexpr std::string_view kMaybe[] = {"exclusive", "get_user_env",  "nice",      "no_kill",
                                         "propagate", "oom_kill_step", "resv_ports"};
  if (std::ranges::find(kMaybe, name) != std::end(kMaybe)) return Wants::maybe;
  const KeyRule* rule = find_rule(Table::sbatch, name);
  return rule != nullptr && rule->kind == Kind::flag ? Wants::none : Wants::value;
}

/// "--gpus-per-node" of a row's name.
std::string written(std::string_view name) {
  std::string text = fmt::format("--{}", name);
  std::ranges::replace(text, '_', '-');
  return text;
}

/// Reads options one after the other, as getopt_long does.
class OptionReader {
 public:
  OptionReader(const std::vector<BatchWord>& words, const BatchMistake& mistake)
      : words_(words), mistake_(mistake) {}

  std::vector<BatchOption> read() {
    while (at_ < words_.size()) {
      const BatchWord& word = words_[at_++];
      if (word.text == "--") break;
      if (word.text.starts_with("--"))
        take_long(word);
      else if (word.text.starts_with('-') && word.text.size() > 1)
        take_short(word);
      else
        refuse_word(word);
    }
    for (; at_ < words_.size(); ++at_) refuse_word(words_[at_]);
    return std::move(options_);
  }

 private:
  void refuse_word(const BatchWord& word) {
    mistake_(word.line,
             fmt::format("{} is no option, and sbatch takes no other words here", shown(word.text)),
             "write --name=value");
  }

  /// The value in the next word; nothing when there is none, which is reported.
  std::optional<std::string> next_value(std::string_view name, int line) {
    if (at_ < words_.size()) return words_[at_++].text;
    mistake_(line, fmt::format("{} has no value", written(name)), "give it");
    return std::nullopt;
  }

  void take_long(const BatchWord& word) {
    const std::size_t equal = std::min(word.text.find('='), word.text.size());
    const std::string given = word.text.substr(2, equal - 2);
    std::optional<std::string> value;
    if (equal < word.text.size()) value = word.text.substr(equal + 1);
    std::string name = given;
    std::ranges::replace(name, '-', '_');
    const bool known = find_rule(Table::sbatch, name) != nullptr;
    if (known && given.find('_') != std::string::npos)
      return mistake_(word.line, fmt::format("sbatch knows no --{}", shown(given)),
                      fmt::format("write {}", written(name)));
    if (!known) {
      if (!shortened(given, name, word.line)) add(given, value.value_or(""), word.line);
      return;
    }
    const Wants kind = wants(name);
    if (kind == Wants::none && value) {
      mistake_(word.line, fmt::format("{} takes no value", written(name)), "take it out");
    } else if (kind == Wants::none) {
      add(name, "true", word.line);
    } else {
      if (kind == Wants::value && !value) value = next_value(name, word.line);
      if (kind == Wants::maybe || value) add(name, value.value_or(""), word.line);
    }
  }

  /// Reports the beginning of a known name: versions of Slurm differ over what it stands for.
  bool shortened(const std::string& given, const std::string& name, int line) {
    if (given.empty()) return false;
    for (const std::string_view known : names_under(Table::sbatch, "")) {
      if (!known.starts_with(name)) continue;
      mistake_(line, fmt::format("--{} is the beginning of a name", shown(given)),
               fmt::format("write {}", written(known)));
      return true;
    }
    return false;
  }

  void take_short(const BatchWord& word) {
    for (std::size_t i = 1; i < word.text.size(); ++i) {
      const auto found =
          std::ranges::find(kShort, word.text[i], &std::pair<char, std::string_view>::first);
      if (found == std::end(kShort)) {
        add(word.text.substr(i, 1), "", word.line);
        continue;
      }
      const std::string_view name = found->second;
      const Wants kind = wants(name);
      if (kind == Wants::none) {
        add(name, "true", word.line);
        continue;
      }
      std::optional<std::string> value = word.text.substr(i + 1);
      if (kind == Wants::value && value->empty()) value = next_value(name, word.line);
      if (value) add(name, *value, word.line);
      return;
    }
  }

  /// Both names of an option are one key.
  void add(std::string_view name, std::string value, int line) {
    if (name == "tasks_per_node") name = "ntasks_per_node";
    options_.push_back({std::string(name), std::move(value), line});
  }

  const std::vector<BatchWord>& words_;
  const BatchMistake& mistake_;
  std::size_t at_ = 0;
  std::vector<BatchOption> options_;
};

}  // namespace

std::vector<BatchOption> batch_options(const std::vector<BatchWord>& words,
                                       const BatchMistake& mistake) {
  return OptionReader(words, mistake).read();
}

}  // namespace dstrain::importing
