#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/data/tokenizer/pattern.h"

#include <fmt/format.h>
#include <pcre2.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "engine/base/error.h"

namespace dstrain {

namespace {

constexpr std::size_t kStackStart = std::size_t{32} << 10;
constexpr std::size_t kStackLimit = std::size_t{8} << 20;
/// PCRE2 cannot be stopped while it matches, and its limit counts steps at one place of the text,
/// each of which may read all the rest. So it is asked for few places at a time, first with few
/// steps, and the clock is read in between.
constexpr std::size_t kPlacesAtOnce = 64;
constexpr std::uint32_t kFirstSteps = 256;
constexpr std::uint32_t kMoreSteps = 4;  ///< times as many after each failure
constexpr std::uint32_t kMaxSteps = kFirstSteps << 22;
constexpr std::size_t kSearchesPerLook = 64;  ///< at the clock
constexpr std::size_t kMaxSourceBytes = std::size_t{64} << 10;

/// CPU time of a text; a usual pattern needs a fiftieth of what there is for a byte.
constexpr double kSecondsPerText = 1;
constexpr double kSecondsPerByte = 2e-6;

double thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

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
  std::size_t text_bytes = 0;
  std::size_t searches = 0;
  double begin_s = -1;  ///< of the first look at the clock; negative: there was none yet
};

PatternScratch::PatternScratch() : handles_(std::make_unique<Handles>()) {
  DSTRAIN_CHECK(handles_->data != nullptr && handles_->context != nullptr,
                "PCRE2 is out of memory");
  pcre2_set_match_limit(handles_->context, kFirstSteps);
  pcre2_set_heap_limit(handles_->context, static_cast<std::uint32_t>(kStackLimit >> 10));
  if (handles_->stack != nullptr)
    pcre2_jit_stack_assign(handles_->context, nullptr, handles_->stack);
}

void PatternScratch::begin_text(std::size_t bytes) {
  handles_->text_bytes = bytes;
  handles_->searches = 0;
  handles_->begin_s = -1;
}

void PatternScratch::check_time(const std::string& where) {
  const double now = thread_seconds();
  if (handles_->begin_s < 0) handles_->begin_s = now;
  const double max = kSecondsPerText + kSecondsPerByte * static_cast<double>(handles_->text_bytes);
  if (now - handles_->begin_s <= max) return;
  throw Error(ErrorKind::data,
              fmt::format("{}: the pattern takes more than {:.1f} s on a text of {} bytes", where,
                          max, handles_->text_bytes),
              "its repetitions can match one text in too many ways; use the model's own "
              "tokenizer.json");
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
  if (source.size() > kMaxSourceBytes) {
    throw Error(ErrorKind::data, fmt::format("{}: a pattern of {} bytes, more than {}", where,
                                             source.size(), kMaxSourceBytes));
  }
  int error = 0;
  PCRE2_SIZE offset = 0;
  // A literal is written as code points, which \C or an end in the middle of a character could
  // split.
  compiled_->code =
      pcre2_compile(units(source), source.size(), PCRE2_UTF | PCRE2_UCP | PCRE2_USE_OFFSET_LIMIT,
                    &error, &offset, nullptr);
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

int Pattern::search(std::string_view text, std::size_t from, std::size_t last,
                    PatternScratch& scratch) const {
  const PatternScratch::Handles& handles = *scratch.handles_;
  pcre2_set_offset_limit(handles.context, last);
  const auto match = [&] {
    return compiled_->jit ? pcre2_jit_match(compiled_->code, units(text), text.size(), from, 0,
                                            handles.data, handles.context)
                          : pcre2_match(compiled_->code, units(text), text.size(), from,
                                        PCRE2_NO_UTF_CHECK, handles.data, handles.context);
  };
  int result = match();
  if (result != PCRE2_ERROR_MATCHLIMIT) return result;
  for (std::uint32_t steps = kFirstSteps * kMoreSteps;
       result == PCRE2_ERROR_MATCHLIMIT && steps <= kMaxSteps; steps *= kMoreSteps) {
    scratch.check_time(compiled_->where);
    pcre2_set_match_limit(handles.context, steps);
    result = match();
    pcre2_set_match_limit(handles.context, kFirstSteps);
  }
  return result;
}

bool Pattern::find(std::string_view text, std::size_t from, Match& match,
                   PatternScratch& scratch) const {
  const PatternScratch::Handles& handles = *scratch.handles_;
  while (true) {
    if (++scratch.handles_->searches % kSearchesPerLook == 0) scratch.check_time(compiled_->where);
    std::size_t last = std::min(text.size(), from + kPlacesAtOnce);
    const int result = search(text, from, last, scratch);
    if (result >= 0) {
      const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(handles.data);
      match = {.begin = offsets[0], .end = offsets[1]};
      return true;
    }
    if (result != PCRE2_ERROR_NOMATCH) {
      throw Error(
          ErrorKind::data,
          fmt::format("{}: matching the pattern failed: {}", compiled_->where, message_of(result)),
          "the pattern needs too many steps on this text");
    }
    if (last == text.size()) return false;
    // On to the next character.
    do ++last;
    while (last < text.size() && (static_cast<unsigned char>(text[last]) & 0xc0) == 0x80);
    from = last;
  }
}

}  // namespace dstrain
