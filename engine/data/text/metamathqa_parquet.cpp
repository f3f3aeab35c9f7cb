#include "engine/data/text/metamathqa.h"
#include "engine/data/text/parquet.h"
#include "engine/data/text/prompts.h"
#include "engine/data/tokenizer/chat_template.h"
#include "engine/data/tokenizer/utf8.h"

namespace dstrain::text {
namespace {

std::string problem_of(const ParquetRow& row) {
  const ParquetValue &query = *row[0], &response = *row[1];
  if (query.null) return "its query is null";
  if (response.null) return "its response is null";
  if (!is_utf8(query.texts[0])) return "query is not UTF-8";
  if (!is_utf8(response.texts[0])) return "response is not UTF-8";
  if (is_blank(query.texts[0])) return "its query is empty";
  if (is_blank(response.texts[0])) return "its response is empty";
  return "";
}

}  // namespace

void read_metamathqa_parquet(const std::filesystem::path& file, const std::string& system,
                             const RecordSink& sink) {
  const std::vector<ParquetColumn> columns = {{.name = "query"},
                                              {.name = "response"},
                                              {.name = "original_question", .optional = true},
                                              {.name = "type", .optional = true}};
  for_each_parquet_row(
      file, columns, [&](const ParquetRow& row, std::int64_t number, double share) {
        Record record{.number = number, .problem = problem_of(row), .share = share};
        if (record.problem.empty()) {
          record.prompt = qwen_chat_prompt(system, row[0]->texts[0]);
          record.response = chat_response(row[1]->texts[0]);
          record.rule = metamathqa_rule(row[3]->null ? "" : row[3]->texts[0]);
          record.answers.emplace_back(row[1]->texts[0]);
          record.group = row[2]->null ? row[0]->texts[0] : row[2]->texts[0];
        }
        sink(std::move(record));
      });
}

}  // namespace dstrain::text
