#pragma once

#include <filesystem>

#include "engine/data/text/record.h"

namespace dstrain::text {

/// SQuAD as published: train-v1.1.json, dev-v1.1.json, train-v2.0.json, dev-v2.0.json. The first
/// answer counts; a question that v2 marks as impossible is answered "unanswerable"; an answer that
/// does not stand at its answer_start (in code points) is a problem of its record. Samples of one
/// context are one group. Rajpurkar et al. 2016, arXiv:1606.05250; 2018, arXiv:1806.03822.
void read_squad_json(const std::filesystem::path& file, const RecordSink& sink);

/// The same as Hugging Face has it: columns question, context, answers {text [], answer_start []}.
/// Only with `unanswerable` (the files of v2) may a question have no answer.
void read_squad_parquet(const std::filesystem::path& file, bool unanswerable,
                        const RecordSink& sink);

}  // namespace dstrain::text
