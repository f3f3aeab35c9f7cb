#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/data/tokenizer/pattern.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <array>
#include <cstdint>
#include <utility>

#include "engine/base/error.h"

namespace dstrain {

namespace {

constexpr std::size_t kStackStart = std::size_t{32} << 10;
constexpr std::size_t kStackLimit = std::size_t{8} << 20;
/// Far above what a sane pattern needs for one match, low enough that a hostile one ends within a
/// second.
constexpr std::uint32_t kStepLimit = 10'000'000;

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

PCRE2_SPTR units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data() == nullptr ? "" : text.data());
}

}  // namespace

struct PatternScratch::Handles {
  // No group captures: one pair of offsets is enough.
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kStackStart, kStackLimit, nullptr);
};

PatternScratch::PatternScratch() : handles_(std::make_unique<Handles>()) {
  DSTRAIN_CHECK(handles_->data != nullptr && handles_->context != nullptr,
                "PCRE2 is out of memory");
  pcre2_set_match_limit(handles_->context, kStepLimit);
  pcre2_set_heap_limit(handles_->context, static_cast<std::uint32_t>(kStackLimit >> 10));
  if (handles_->stack != nullptr)
    pcre2_jit_stack_assign(handles_->context, nullptr, handles_->stack);
}

PatternScratch::~PatternScratch() {
  pcre2_match_data_free(handles_->data);
  pcre2_match_context_free(handles_->context);
  pcre2_jit_stack_free(handles_->stack);
}

struct Pattern::Compiled {
  pcre2_code* code = nullptr;
  bool jit = false;
  std::string where;
};

Pattern::Pattern(const std::string& source, const std::string& where)
    : compiled_(std::make_unique<Compiled>()) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  // A literal is written as code points, which \C or an end in the middle of a character could
  // split.
  compiled_->code =
      pcre2_compile(units(source), source.size(), PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  if (compiled_->code == nullptr) {
    throw Error(ErrorKind::data,
                fmt::format("{}: the pattern is refused: {}", where, message_of(error)),
                "see the pattern in tokenizer.json; it is in the syntax of Oniguruma");
  }
  compiled_->jit = pcre2_jit_compile(compiled_->code, PCRE2_JIT_COMPLETE) == 0;
  compiled_->where = where;
}

Pattern::~Pattern() {
  if (compiled_) pcre2_code_free(compiled_->code);
}
Pattern::Pattern(Pattern&& other) noexcept = default;
Pattern& Pattern::operator=(Pattern&& other) noexcept {
  std::swap(compiled_, other.compiled_);
  return *this;
}

bool Pattern::find(std::string_view text, std::size_t from, Match& match,
                   PatternScratch& scratch) const {
  const PatternScratch::Handles& handles = *scratch.handles_;
  const int result = compiled_->jit
                         ? pcre2_jit_match(compiled_->code, units(text), text.size(), from, 0,
                                           handles.data, handles.context)
                         : pcre2_match(compiled_->code, units(text), text.size(), from,
                                       PCRE2_NO_UTF_CHECK, handles.data, handles.context);
  if (result >= 0) {
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(handles.data);
    match = {.begin = offsets[0], .end = offsets[1]};
    return true;
  }
  if (result == PCRE2_ERROR_NOMATCH) return false;
  throw Error(
      ErrorKind::data,
      fmt::format("{}: matching the pattern failed: {}", compiled_->where, message_of(result)),
      "the pattern needs too many steps on this text");
}

}  // namespace dstrain
