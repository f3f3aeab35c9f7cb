#include "engine/data/text/parquet.h"
#include "engine/data/text/prompts.h"
#include "engine/data/text/squad.h"
#include "engine/data/tokenizer/utf8.h"

namespace dstrain::text {
namespace {

std::string problem_of(const ParquetRow& row, bool unanswerable) {
  const ParquetValue &question = *row[0], &context = *row[1], &texts = *row[2], &starts = *row[3];
  if (question.null) return "its question is null";
  if (context.null) return "its context is null";
  if (texts.null || starts.null) return "its answers are null";
  if (!is_utf8(question.texts[0])) return "question is not UTF-8";
  if (!is_utf8(context.texts[0])) return "context is not UTF-8";
  if (texts.texts.empty() && unanswerable) return "";
  if (texts.texts.empty())
    return "answers.text is empty; only SQuAD v2, in a folder squad_v2, has such questions";
  if (starts.integers.empty()) return "answers.answer_start is empty";
  if (!is_utf8(texts.texts[0])) return "answers.text is not UTF-8";
  if (is_blank(texts.texts[0])) return "its answer is empty";
  return check_answer(context.texts[0], texts.texts[0], starts.integers[0]);
}

}  // namespace

void read_squad_parquet(const std::filesystem::path& file, bool unanswerable,
                        const RecordSink& sink) {
  const std::vector<ParquetColumn> columns = {
      {.name = "question"},
      {.name = "context"},
      {.name = "answers.text", .type = ParquetType::texts},
      {.name = "answers.answer_start", .type = ParquetType::integers}};
  for_each_parquet_row(
      file, columns, [&](const ParquetRow& row, std::int64_t number, double share) {
        Record record{.number = number, .problem = problem_of(row, unanswerable), .share = share};
        if (record.problem.empty()) {
          const auto& answers = row[2]->texts;
          record.prompt = squad_prompt(row[0]->texts[0], row[1]->texts[0]);
          record.response = squad_response(answers.empty() ? kUnanswerable : answers[0]);
          record.group = row[1]->texts[0];
          record.answers.assign(answers.begin(), answers.end());
          if (answers.empty()) record.answers = {""};
        }
        sink(std::move(record));
      });
}

}  // namespace dstrain::text
