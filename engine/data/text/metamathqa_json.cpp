#include <fmt/format.h>

#include <optional>
#include <utility>

#include "engine/data/text/json_file.h"
#include "engine/data/text/metamathqa.h"
#include "engine/data/text/prompts.h"
#include "engine/data/tokenizer/chat_template.h"

namespace dstrain::text {
namespace {

/// [{"query": "", "response": "", "original_question": "", "type": ""}], members in any order,
/// others ignored.
class MetaMathQa final : public JsonHandler {
 public:
  MetaMathQa(JsonFile& file, const std::string& system, const RecordSink& sink)
      : JsonHandler(file), system_(system), sink_(sink) {}

 private:
  struct Entry {
    std::optional<std::string> query = {}, response = {}, original = {};
    std::string type = {};     ///< of no use for training: a wrong one costs nothing
    std::string problem = {};  ///< the first one
  };

  // Depth 0: the file, 1: the list, 2: an entry, more: a member that is not ours.

  void on_key(std::string& name) override {
    static_cast<void>(file_.take_broken());
    if (depth_ == 2) key_ = std::move(name);
  }

  void on_string(std::string& value) override {
    const bool broken = file_.take_broken();
    if (in_entry() && key_ == "type") {
      entry_.type = std::move(value);
      return;
    }
    std::optional<std::string>* field = member();
    if (field == nullptr) return on_other("text");
    *field = std::move(value);
    if (broken) add_problem(fmt::format("{} is not UTF-8 at byte {}", key_, file_.broken_byte()));
  }

  void on_boolean(bool) override { on_other("true or false"); }
  void on_integer(std::int64_t) override { on_other("a number"); }

  void on_other(const char* what) override {
    if (depth_ == 0) file_.fail(fmt::format("MetaMathQA is a list of objects, this is {}", what));
    if (depth_ == 1) emit({.problem = fmt::format("it is {}, expected an object", what)});
    if (member() != nullptr) add_problem(fmt::format("{} is {}, expected text", key_, what));
  }

  void on_object() override {
    if (depth_ == 1) {
      entry_ = {};
    } else {
      on_other("an object");
    }
    ++depth_;
  }

  void on_array() override {
    if (depth_ == 1) in_list_ = true;
    if (depth_ > 0) on_other("a list");
    ++depth_;
  }

  void on_end() override {
    --depth_;
    if (depth_ != 1) return;
    if (in_list_) {
      in_list_ = false;
    } else {
      if (entry_.problem.empty()) entry_.problem = problem_of(entry_);
      emit(std::move(entry_));
    }
  }

  void emit(Entry entry) {
    Record record{.number = ++count_, .problem = std::move(entry.problem), .share = file_.share()};
    if (record.problem.empty()) {
      record.prompt = qwen_chat_prompt(system_, *entry.query);
      record.response = chat_response(*entry.response);
      record.rule = metamathqa_rule(entry.type);
      record.answers.push_back(std::move(*entry.response));
      record.group = entry.original ? std::move(*entry.original) : std::move(*entry.query);
    }
    sink_(std::move(record));
  }

  [[nodiscard]] bool in_entry() const { return depth_ == 2 && !in_list_; }
  /// Where the value of the present key goes; null when it is not ours.
  std::optional<std::string>* member() {
    if (!in_entry()) return nullptr;
    if (key_ == "query") return &entry_.query;
    if (key_ == "response") return &entry_.response;
    if (key_ == "original_question") return &entry_.original;
    return nullptr;
  }
  void add_problem(const std::string& problem) {
    if (entry_.problem.empty()) entry_.problem = problem;
  }

  static std::string problem_of(const Entry& entry) {
    if (!entry.query) return "it has no query";
    if (is_blank(*entry.query)) return "its query is empty";
    if (!entry.response) return "it has no response";
    if (is_blank(*entry.response)) return "its response is empty";
    return "";
  }

  const std::string& system_;
  const RecordSink& sink_;
  int depth_ = 0;
  bool in_list_ = false;  ///< inside a list that stands in place of an entry
  std::string key_;
  Entry entry_;
  std::int64_t count_ = 0;
};

}  // namespace

void read_metamathqa_json(const std::filesystem::path& path, const std::string& system,
                          const RecordSink& sink) {
  JsonFile file(path);
  MetaMathQa handler(file, system, sink);
  file.parse(handler);
}

}  // namespace dstrain::text
