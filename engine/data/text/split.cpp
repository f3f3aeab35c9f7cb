#include "engine/data/text/split.h"

#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/data/text/format.h"
#include "engine/data/text/sources.h"
#include "engine/data/text/token_cache.h"
#include "engine/data/text/tokenise.h"

namespace dstrain::text {

OpenSplit open_split(const DataConfig& data, bool test, const EncoderSource& encoder,
                     ProgressSink* progress) {
  if (const auto check = text_format(data).check) check(data);
  const Sources sources = find_sources(data);
  if (progress != nullptr && !test && !sources.note.empty()) progress->note(sources.note);
  const bool own_test = !sources.test.files.empty();
  const SourceFiles& files = own_test && test ? sources.test : sources.train;
  const Part part = own_test ? Part::whole : test ? Part::held_out : Part::train;
  TokenFiles file = text_format(data).prepared
                        ? open_prepared(files.files, encoder.tokenizer)
                        : open_tokens(data, files, encoder, progress, own_test && test);
  Selection selection = select(data, files, file, part);
  const char* name = test ? "test" : "train";
  if (selection.samples.empty()) {
    throw Error(ErrorKind::data,
                fmt::format("{}: no sample is left in the {} split{}", data.path, name,
                            left_out_text(selection)),
                part == Part::whole || selection.too_long + selection.unused > 0
                    ? "fix the records, or raise data.sequence"
                    : "the files have no test split of their own: data.test_share of the samples "
                      "become one, and those with the same prompt stay together");
  }
  if (progress != nullptr) progress->note(describe(data, name, selection));
  return {.sources = files,
          .file = std::move(file),
          .selection = std::move(selection),
          .shares_file = !own_test};
}

void check_vocabulary(const DataConfig& data, const OpenSplit& split, std::int64_t vocab_size) {
  const TokenFileSummary& summary = split.file.summary();
  const std::string hint = "use the tokenizer that belongs to the model (data.tokenizer)";
  if (summary.highest >= vocab_size) {
    throw Error(ErrorKind::data,
                fmt::format("{} has token {}, but the model's vocabulary ends at {}",
                            describe_record(data, split.sources, summary, summary.highest_record),
                            summary.highest, vocab_size - 1),
                hint);
  }
  if (summary.pad >= vocab_size) {
    throw Error(ErrorKind::data,
                fmt::format("the tokenizer fills up with token {}, but the model's vocabulary ends "
                            "at {}",
                            summary.pad, vocab_size - 1),
                hint);
  }
}

}  // namespace dstrain::text
