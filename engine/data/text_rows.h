#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "engine/data/dataset.h"
#include "engine/data/text/packing.h"
#include "engine/data/text/selection.h"
#include "engine/data/text/token_files.h"
#include "engine/recipe/recipe.h"

namespace dstrain::text {

/// Rows over the tokens of a file: one selected sample each, or several with data.packing. The
/// label of a token is the one that follows it in its sample; the last token of a sample has none.
/// With data.loss: response only tokens of the response, the end included, are labels; of chats
/// the last answer, with assistant all answers. With data.pairs a row is a pair, whose answers are
/// labels.
[[nodiscard]] std::unique_ptr<TextDataset> make_rows(const DataConfig& data, TokenFiles file,
                                                     Selection selection, std::int64_t seed);

/// Which tokens are labels: data.loss, and of pairs the answers.
[[nodiscard]] LossOn loss_on(const DataConfig& data);

/// Which of the first tokens of sample `i` are labels of the token before them: 1 for each. Fills
/// `tokens` as TokenFiles::copy does; `labels` has as many.
void copy_with_labels(LossOn loss, const TokenFiles& file, std::int64_t i,
                      std::span<std::int64_t> tokens, std::span<std::uint8_t> labels);

/// Labels of the first `length` tokens of sample `i`.
[[nodiscard]] std::int64_t num_targets(LossOn loss, const TokenFiles& file, std::int64_t i,
                                       std::int64_t length);

/// Rows of random tokens below `vocab_size`, all of them labels; a pure function of (seed, split,
/// index). `pairs`: the halves of a row are a pair of answers without a prompt.
[[nodiscard]] std::unique_ptr<TextDataset> make_random_rows(std::int64_t size, int sequence,
                                                            std::int64_t vocab_size,
                                                            std::int64_t seed, Split split,
                                                            bool pairs = false);

}  // namespace dstrain::text
