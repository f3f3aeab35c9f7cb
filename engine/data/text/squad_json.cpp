#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

#include "engine/data/text/json_file.h"
#include "engine/data/text/prompts.h"
#include "engine/data/text/squad.h"

namespace dstrain::text {
namespace {

/// {"data": [{"paragraphs": [{"context": "", "qas": [{"question": "", "is_impossible": false,
/// "answers": [{"text": "", "answer_start": 0}]}]}]}]}, members in any order, others ignored.
enum class Level {
  file,
  root,
  data,
  article,
  paragraphs,
  paragraph,
  questions,
  question,
  answers,
  answer,
  ignored
};

struct Question {
  std::optional<std::string> text;
  std::optional<std::string> answer;  ///< of the first answer, like `start`
  std::optional<std::int64_t> start;
  std::optional<int> num_answers;
  std::vector<std::string> answers;  ///< all of them
  bool impossible = false;
  std::string problem;  ///< the first one
};

class Squad final : public JsonHandler {
 public:
  Squad(JsonFile& file, const RecordSink& sink) : JsonHandler(file), sink_(sink) {}

  void finish() const {
    if (!found_data_) file_.fail("this is not SQuAD: there is no \"data\"");
  }

 private:
  void on_key(std::string& name) override {
    static_cast<void>(file_.take_broken());
    key_ = std::move(name);
  }

  void on_string(std::string& value) override {
    std::string problem;
    if (file_.take_broken())
      problem = fmt::format("{} is not UTF-8 at byte {}", key_, file_.broken_byte());
    switch (level()) {
      case Level::paragraph:
        if (key_ != "context") break;
        context_ = std::move(value);
        if (!problem.empty()) context_problem_ = problem;
        return;
      case Level::question:
        if (key_ != "question") break;
        question().text = std::move(value);
        add_problem(problem);
        return;
      case Level::answer:
        if (key_ != "text") break;
        question().answers.push_back(value);
        if (question().num_answers == 1) {
          question().answer = std::move(value);
          add_problem(problem);
        }
        return;
      case Level::file:
      case Level::root:
      case Level::data:
      case Level::article:
      case Level::paragraphs:
      case Level::questions:
      case Level::answers:
      case Level::ignored:
        break;
    }
    on_other("text");
  }

  void on_boolean(bool value) override {
    if (level() == Level::question && key_ == "is_impossible") {
      question().impossible = value;
    } else {
      on_other("true or false");
    }
  }

  void on_integer(std::int64_t value) override {
    if (level() == Level::answer && key_ == "answer_start") {
      if (question().num_answers == 1) question().start = value;
    } else {
      on_other("a number");
    }
  }

  /// A value where none like it belongs: a problem of its record, or of the file when it stands in
  /// place of a list or an entry of one; nothing where the member is not ours.
  void on_other(const char* what) override {
    const auto wrong = [&](const char* expected) {
      return fmt::format("{} is {}, expected {}", key_, what, expected);
    };
    switch (level()) {
      case Level::paragraph:
        if (key_ == "context") context_problem_ = wrong("text");
        if (key_ == "qas") file_.fail(wrong("a list"));
        break;
      case Level::question:
        if (key_ == "question") add_problem(wrong("text"));
        if (key_ == "is_impossible") add_problem(wrong("true or false"));
        if (key_ == "answers") add_problem(wrong("a list"));
        break;
      case Level::answer:
        if (question().num_answers != 1) break;
        if (key_ == "text") add_problem(wrong("text"));
        if (key_ == "answer_start") add_problem(wrong("a whole number"));
        break;
      case Level::root:
        if (key_ == "data") file_.fail(wrong("a list"));
        break;
      case Level::article:
        if (key_ == "paragraphs") file_.fail(wrong("a list"));
        break;
      case Level::file:
      case Level::data:
      case Level::paragraphs:
      case Level::questions:
        file_.fail(fmt::format("{} stands where an object was expected", what));
      case Level::answers:
        add_problem(fmt::format("an answer is {}, expected an object", what));
        break;
      case Level::ignored:
        break;
    }
  }

  void on_object() override {
    static_cast<void>(file_.take_broken());
    switch (level()) {
      case Level::file:
        return push(Level::root);
      case Level::data:
        return push(Level::article);
      case Level::paragraphs:
        context_.reset();
        context_problem_.clear();
        questions_.clear();
        return push(Level::paragraph);
      case Level::questions:
        questions_.emplace_back();
        return push(Level::question);
      case Level::answers:
        question().num_answers = *question().num_answers + 1;
        return push(Level::answer);
      case Level::root:
      case Level::article:
      case Level::paragraph:
      case Level::question:
      case Level::answer:
        on_other("an object");
        break;
      case Level::ignored:
        break;
    }
    push(Level::ignored);
  }

  void on_array() override {
    if (level() == Level::root && key_ == "data") {
      found_data_ = true;
      return push(Level::data);
    }
    if (level() == Level::article && key_ == "paragraphs") return push(Level::paragraphs);
    if (level() == Level::paragraph && key_ == "qas") return push(Level::questions);
    if (level() == Level::question && key_ == "answers") {
      question().num_answers = 0;
      return push(Level::answers);
    }
    if (level() != Level::ignored) on_other("a list");
    push(Level::ignored);
  }

  void on_end() override {
    const Level ended = level();
    levels_.pop_back();
    if (ended == Level::paragraph) emit();
  }

  /// A context may follow its questions (v2), so they wait for the end of the paragraph.
  void emit() {
    for (Question& question : questions_) {
      Record record{.number = ++count_, .share = file_.share()};
      record.problem = problem_of(question);
      if (record.problem.empty()) {
        record.prompt = squad_prompt(*question.text, *context_);
        record.response = squad_response(question.impossible ? kUnanswerable : *question.answer);
        record.group = *context_;
        record.answers = std::move(question.answers);
        if (question.impossible) record.answers = {""};
      }
      sink_(std::move(record));
    }
  }

  [[nodiscard]] std::string problem_of(const Question& question) const {
    if (!context_problem_.empty()) return context_problem_;
    if (!context_) return "its paragraph has no context";
    if (!question.problem.empty()) return question.problem;
    if (!question.text) return "it has no question";
    if (!question.num_answers) return "it has no answers";
    if (question.impossible) {
      return *question.num_answers == 0 ? "" : "is_impossible is true, yet there are answers";
    }
    if (*question.num_answers == 0) return "answers is empty";
    if (!question.answer) return "its answer has no text";
    if (is_blank(*question.answer)) return "its answer is empty";
    if (!question.start) return "its answer has no answer_start";
    return check_answer(*context_, *question.answer, *question.start);
  }

  void add_problem(const std::string& problem) {
    if (question().problem.empty()) question().problem = problem;
  }
  Question& question() { return questions_.back(); }
  [[nodiscard]] Level level() const { return levels_.back(); }
  void push(Level next) { levels_.push_back(next); }

  const RecordSink& sink_;
  std::vector<Level> levels_ = {Level::file};
  std::string key_;  ///< of the member that is read
  bool found_data_ = false;
  std::optional<std::string> context_;
  std::string context_problem_;
  std::vector<Question> questions_;  ///< of the paragraph
  std::int64_t count_ = 0;
};

}  // namespace

void read_squad_json(const std::filesystem::path& path, const RecordSink& sink) {
  JsonFile file(path);
  Squad squad(file, sink);
  file.parse(squad);
  squad.finish();
}

}  // namespace dstrain::text
