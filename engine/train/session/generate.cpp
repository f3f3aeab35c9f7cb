#include "engine/train/session/generate.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/data/own_rows.h"

namespace dstrain {
namespace {

/// One sample on its way: its tokens so far, and which of them are the answer.
struct Row {
  std::vector<std::int64_t> tokens;
  std::size_t answer_begin = 0;
  bool ended = false;
};

Row start_row(const TextQuestion& sample, const GenerateOptions& options) {
  const std::vector<std::int64_t>& prompt = sample.prompt_tokens;
  DSTRAIN_CHECK(std::cmp_less(prompt.size(), options.sequence), "a prompt that leaves no room");
  return {.tokens = prompt, .answer_begin = prompt.size(), .ended = prompt.empty()};
}

Batch batch_of(const std::vector<Row>& rows, const GenerateOptions& options, at::Tensor& last) {
  const std::int64_t count = options.micro_batch, length = options.sequence;
  HostBatch host;
  host.tokens = at::zeros({count, length}, at::kLong);
  host.labels = at::zeros({count * length}, at::kLong);
  host.weights = at::zeros({count * length}, at::kFloat);
  last = at::zeros({count}, at::kLong);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::ranges::copy(rows[r].tokens, host.tokens.mutable_data_ptr<std::int64_t>() +
                                          static_cast<std::int64_t>(r) * length);
    last.mutable_data_ptr<std::int64_t>()[r] =
        std::max<std::int64_t>(0, static_cast<std::int64_t>(rows[r].tokens.size()) - 1);
  }
  if (options.own.ranks > 1) host = own_rows(host, options.own, /*pinned=*/false);
  Batch batch;
  batch.tokens = host.tokens.to(options.device);
  batch.labels = host.labels.to(options.device);
  batch.weights = host.weights.to(options.device);
  if (options.own.ranks > 1) {
    batch.own = {.rows = host.own_rows.to(options.device),
                 .positions = host.own_positions.to(options.device)};
  }
  return batch;
}

/// One rank's choice holds for all: on the others rounding may differ, and with it the end.
void agree(Communicator& ranks, int speaker, at::Tensor& tokens, c10::Device device) {
  if (ranks.size() == 1) return;
  at::Tensor shared = tokens.to(at::kFloat).to(device);  // token numbers are exact in fp32
  if (ranks.rank() != speaker) shared.zero_();
  ranks.all_reduce(shared, ReduceOp::sum);
  tokens = shared.cpu().to(at::kLong);
}

void complete(std::vector<Row>& rows, std::span<const TextQuestion> samples, Executor& executor,
              Communicator& ranks, const GenerateOptions& options, bool rehearse) {
  for (int token = 0; token < options.max_tokens; ++token) {
    if (std::ranges::all_of(rows, &Row::ended)) return;
    at::Tensor last;
    const Batch batch = batch_of(rows, options, last);
    if (rehearse && token == 0) executor.rehearse_next_tokens(batch, last);
    at::Tensor next = executor.next_tokens(batch, last);
    agree(ranks, options.speaker, next, options.device);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      if (rows[r].ended) continue;
      const std::int64_t found = next.const_data_ptr<std::int64_t>()[r];
      rows[r].ended = found == samples[r].end_token;
      if (!rows[r].ended) rows[r].tokens.push_back(found);
      if (std::cmp_greater_equal(rows[r].tokens.size(), options.sequence)) rows[r].ended = true;
    }
  }
}

}  // namespace

std::string keep_answerable(std::vector<TextQuestion>& samples, std::int64_t sequence,
                            int max_tokens) {
  const std::size_t asked = samples.size();
  std::erase_if(samples, [&](const TextQuestion& sample) {
    return std::cmp_greater_equal(sample.prompt_tokens.size(), sequence);
  });
  const std::size_t filled = asked - samples.size();
  const auto cut = std::ranges::count_if(samples, [&](const TextQuestion& sample) {
    return std::ssize(sample.prompt_tokens) + max_tokens > sequence;
  });
  if (filled == 0 && cut == 0) return "";
  return fmt::format(
      "run.generate: of {} prompts {} fill data.sequence ({}) and get no answer, {} leave room for "
      "fewer than run.generate_tokens ({}); a longer data.sequence has room",
      asked, filled, sequence, cut, max_tokens);
}

AnswerFigures mean_figures(const std::vector<GeneratedAnswer>& answers) {
  AnswerMeans means;
  for (const GeneratedAnswer& answer : answers) means.add(answer.figures);
  return means.means();
}

void pass_of_nothing(Executor& executor, const GenerateOptions& options) {
  at::Tensor last;
  const Batch batch = batch_of({}, options, last);
  static_cast<void>(executor.next_tokens(batch, last));
}

std::vector<GeneratedAnswer> generate(Executor& executor, Communicator& ranks,
                                      const std::vector<TextQuestion>& samples,
                                      const Tokenizer& tokenizer, const GenerateOptions& options) {
  std::vector<GeneratedAnswer> answers;
  const auto step = static_cast<std::size_t>(options.micro_batch);
  for (std::size_t first = 0; first < samples.size(); first += step) {
    const std::span<const TextQuestion> some =
        std::span(samples).subspan(first, std::min(step, samples.size() - first));
    std::vector<Row> rows;
    for (const TextQuestion& sample : some) rows.push_back(start_row(sample, options));
    complete(rows, some, executor, ranks, options, options.rehearse && first == 0);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const std::vector<std::int32_t> ids(
          rows[r].tokens.begin() + static_cast<std::ptrdiff_t>(rows[r].answer_begin),
          rows[r].tokens.end());
      std::string answer = tokenizer.decode(ids);
      const AnswerFigures figures = judge_answer(some[r], answer);
      answers.push_back({some[r].prompt, some[r].response, std::move(answer), figures});
    }
  }
  return answers;
}

}  // namespace dstrain
