#pragma once

#include <cstdint>
#include <string>

#include "engine/data/text/chat_form.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "engine/infer/cached_model.h"
#include "engine/infer/writer.h"

namespace dstrain {

/// A chat at the terminal: lines of standard input are a user's messages, or commands ("/help").
/// `capacity`: tokens that the cache has room for; where a chat has more, its oldest turns go, in
/// words. Returns at the end of the input, or at Ctrl-C while nothing is written.
int chat_at_terminal(CachedModel& model, const Tokenizer& tokenizer, const ChatForm& form,
                     WriteOptions options, std::string system, std::int64_t capacity);

}  // namespace dstrain
