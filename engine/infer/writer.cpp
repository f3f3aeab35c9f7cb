#include "engine/infer/writer.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "engine/device/device.h"

namespace dstrain {
namespace {

/// What reading a few prompts costs, in steps: free slots wait for each other until they have cost
/// as much.
constexpr std::size_t kStepsOfReading = 2;

/// One answer on its way.
struct Sequence {
  std::size_t prompt = 0;
  int sample = 0;
  std::vector<std::int64_t> tokens;  ///< prompt and answer
  std::size_t answer_begin = 0;
  double log_probability = 0;
  std::size_t shown = 0;   ///< bytes of the text that were handed on
  std::size_t on_way = 0;  ///< tokens that started steps will choose
};

/// The answers that no model has begun.
class Waiting {
 public:
  struct Answer {
    std::size_t prompt;
    int sample;
  };
  Waiting(std::size_t prompts, int samples) {
    for (std::size_t prompt = 0; prompt < prompts; ++prompt) {
      for (int sample = 0; sample < samples; ++sample) answers_.push_back({prompt, sample});
    }
  }
  [[nodiscard]] std::optional<Answer> take() {
    const std::lock_guard lock(mutex_);
    if (answers_.empty()) return std::nullopt;
    const Answer first = answers_.front();
    answers_.pop_front();
    return first;
  }
  void give_back(const Answer& answer) {
    const std::lock_guard lock(mutex_);
    answers_.push_front(answer);
  }
  [[nodiscard]] bool empty() {
    const std::lock_guard lock(mutex_);
    return answers_.empty();
  }

 private:
  std::mutex mutex_;
  std::deque<Answer> answers_;
};

class Writing {
 public:
  Writing(CachedModel& model, Waiting& waiting, const Tokenizer& tokenizer,
          std::span<const std::vector<std::int64_t>> prompts, const WriteOptions& options,
          const std::function<void(WrittenAnswer)>& done,
          const std::function<void(std::string_view)>& text)
      : model_(model),
        waiting_(waiting),
        tokenizer_(tokenizer),
        prompts_(prompts),
        options_(options),
        done_(done),
        text_(text),
        active_(static_cast<std::size_t>(model.slots())),
        ahead_(is_greedy() && options.ahead.value_or(model.device().is_cuda())
                   ? CachedModel::kStepsOnWay
                   : 1) {}

  /// Reads prompts into free slots, starts steps, hands on what ended before and takes the tokens
  /// of a step; false at the end.
  bool step() {
    const auto free = static_cast<std::size_t>(
        std::ranges::count_if(active_, [](const auto& own) { return !own.has_value(); }));
    steps_of_free_slots_ += free;
    if (free == active_.size() || steps_of_free_slots_ >= kStepsOfReading * active_.size())
      read_waiting();
    while (on_way_.size() < ahead_ && start_step()) {
    }
    hand_on_ended();
    if (on_way_.empty()) return !waiting_.empty();
    finish_step();
    return true;
  }

  /// Texts are made while the device works.
  void hand_on_ended() {
    for (Ended& answer : ended_) {
      Sequence& own = answer.sequence;
      std::string text = answer.text ? std::move(*answer.text) : answer_of(own);
      if (text_ && own.prompt == 0 && own.sample == 0) show(own, text, /*whole=*/true);
      done_({.prompt = own.prompt,
             .sample = own.sample,
             .text = std::move(text),
             .tokens = answer.tokens,
             .ended = answer.ended,
             .log_probability = own.log_probability});
    }
    ended_.clear();
  }

 private:
  struct Ended {
    Sequence sequence;
    std::optional<std::string> text;  ///< where it was made to find the end
    int tokens;
    std::string_view ended;
  };

  /// Who a row of a started step belongs to: its slot may go to another answer before it is done.
  struct Row {
    std::size_t slot, prompt;
    int sample;
  };

  [[nodiscard]] bool is_greedy() const {
    return options_.sampling.temperature == 0 && options_.sampling.repetition_penalty == 1;
  }

  /// False where each answer ends with the tokens that are on their way.
  bool start_step() {
    std::vector<std::int64_t> tokens(active_.size(), CachedModel::kLikely);
    std::vector<std::int32_t> positions(active_.size());
    std::vector<Row> rows;
    for (std::size_t slot = 0; slot < active_.size(); ++slot) {
      if (!active_[slot]) continue;
      Sequence& own = *active_[slot];
      const std::size_t length = own.tokens.size() + own.on_way;
      if (own.on_way > 0 && !ended_at(own, length).empty()) continue;
      if (own.on_way == 0) tokens[slot] = own.tokens.back();
      positions[slot] = static_cast<std::int32_t>(length) - 1;
      ++own.on_way;
      rows.push_back({.slot = slot, .prompt = own.prompt, .sample = own.sample});
    }
    if (rows.empty()) return false;
    model_.start(tokens, positions);
    on_way_.push_back(std::move(rows));
    return true;
  }

  void finish_step() {
    const std::vector<Row> rows = std::move(on_way_.front());
    on_way_.pop_front();
    const Chosen chosen = model_.finish();
    std::vector<std::size_t> slots;
    for (const Row& row : rows) {
      const std::optional<Sequence>& own = active_[row.slot];
      if (!own || own->prompt != row.prompt || own->sample != row.sample) continue;
      --active_[row.slot]->on_way;
      slots.push_back(row.slot);
    }
    if (!is_greedy()) return choose(model_.logits(), slots, /*all_rows=*/true);
    for (const std::size_t slot : slots)
      take(slot, chosen.tokens[slot], chosen.log_probabilities[slot]);
  }

  /// Why an answer ends at `length` tokens with its prompt; empty where it goes on.
  [[nodiscard]] std::string_view ended_at(const Sequence& own, std::size_t length) const {
    if (std::cmp_greater_equal(length - own.answer_begin, options_.max_tokens)) return "length";
    return std::cmp_greater_equal(length, model_.capacity()) ? "room" : "";
  }

  void read_waiting() {
    struct Prompts {
      CachedModel::Reading reading;
      std::vector<std::size_t> slots;
    };
    steps_of_free_slots_ = 0;
    std::vector<Prompts> started;
    for (;;) {
      std::vector<std::vector<std::int64_t>> prompts;
      std::vector<std::int64_t> places;
      std::vector<std::size_t> slots;
      std::size_t rows = 0;
      for (std::size_t slot = 0; slot < active_.size(); ++slot) {
        if (active_[slot]) continue;
        const std::optional<Waiting::Answer> taken = waiting_.take();
        if (!taken) break;
        const Waiting::Answer next = *taken;
        const std::vector<std::int64_t>& prompt = prompts_[next.prompt];
        if (std::cmp_greater_equal(prompt.size(), model_.capacity()) || prompt.empty() ||
            options_.max_tokens == 0) {
          done_({.prompt = next.prompt,
                 .sample = next.sample,
                 .ended = options_.max_tokens == 0 ? "length" : "room"});
          --slot;
          continue;
        }
        if (!prompts.empty() && std::cmp_greater(rows + prompt.size(), model_.rows_at_once())) {
          waiting_.give_back(next);
          break;
        }
        rows += prompt.size();
        prompts.push_back(prompt);
        places.push_back(static_cast<std::int64_t>(slot));
        slots.push_back(slot);
        active_[slot] = {.prompt = next.prompt,
                         .sample = next.sample,
                         .tokens = prompt,
                         .answer_begin = prompt.size()};
      }
      if (prompts.empty()) break;
      started.push_back({.reading = model_.read(prompts, places), .slots = std::move(slots)});
    }
    hand_on_ended();
    for (const Prompts& prompts : started) {
      const Chosen likely = CachedModel::finish(prompts.reading);
      if (!is_greedy()) {
        choose(prompts.reading.logits, prompts.slots, /*all_rows=*/false);
        continue;
      }
      for (std::size_t i = 0; i < prompts.slots.size(); ++i)
        take(prompts.slots[i], likely.tokens[i], likely.log_probabilities[i]);
    }
  }

  /// Adds the next token to the sequences in `slots`. Logits have a row for each of them, or for
  /// each slot of the model.
  void choose(const at::Tensor& logits, const std::vector<std::size_t>& slots, bool all_rows) {
    std::vector<std::span<const std::int64_t>> before(all_rows ? active_.size() : slots.size());
    std::vector<float> draws(before.size(), 0.5F);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const Sequence& own = *active_[slots[i]];
      const std::size_t row = all_rows ? slots[i] : i;
      before[row] = own.tokens;
      draws[row] = draw_for(options_.seed, own.prompt, static_cast<std::uint32_t>(own.sample),
                            static_cast<std::uint32_t>(own.tokens.size() - own.answer_begin));
    }
    const Chosen chosen = choose_tokens(logits, options_.sampling, before, draws);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const std::size_t row = all_rows ? slots[i] : i;
      take(slots[i], chosen.tokens[row], chosen.log_probabilities[row]);
    }
  }

  [[nodiscard]] std::string answer_of(const Sequence& own) const {
    const std::vector<std::int32_t> ids(
        own.tokens.begin() + static_cast<std::ptrdiff_t>(own.answer_begin), own.tokens.end());
    return tokenizer_.decode(ids);
  }

  void take(std::size_t slot, std::int64_t token, float log_probability) {
    Sequence& own = *active_[slot];
    own.log_probability += log_probability;
    const int count = static_cast<int>(own.tokens.size() - own.answer_begin) + 1;
    if (std::ranges::find(options_.stop_tokens, token) != options_.stop_tokens.end())
      return end(slot, std::nullopt, count, "stop");
    own.tokens.push_back(token);
    std::string_view ended = ended_at(own, own.tokens.size());
    const bool shows = text_ && own.prompt == 0 && own.sample == 0;
    if (options_.stop_texts.empty() && !shows) {
      if (!ended.empty()) end(slot, std::nullopt, count, ended);
      return;
    }
    std::string text = answer_of(own);
    std::size_t cut = std::string::npos;
    for (const std::string& stop : options_.stop_texts) cut = std::min(cut, text.find(stop));
    if (cut != std::string::npos) {
      text.resize(cut);
      ended = "stop";
    }
    if (!ended.empty()) return end(slot, std::move(text), count, ended);
    if (shows) show(own, text, /*whole=*/false);
  }

  /// Hands on what is sure: not the bytes of a character that goes on, nor what may become a stop
  /// text.
  void show(Sequence& own, const std::string& text, bool whole) {
    std::size_t end = text.size();
    if (!whole) {
      constexpr std::string_view kUnknown = "\xEF\xBF\xBD";
      while (end >= kUnknown.size() && std::string_view(text).substr(0, end).ends_with(kUnknown))
        end -= kUnknown.size();
      for (const std::string& stop : options_.stop_texts) {
        for (std::size_t length = std::min(stop.size(), end); length > 0; --length) {
          if (std::string_view(text).substr(0, end).ends_with(
                  std::string_view(stop).substr(0, length))) {
            end -= length;
            break;
          }
        }
      }
    }
    if (end <= own.shown) return;
    text_(std::string_view(text).substr(own.shown, end - own.shown));
    own.shown = end;
  }

  void end(std::size_t slot, std::optional<std::string> text, int tokens, std::string_view ended) {
    ended_.push_back({.sequence = std::move(*active_[slot]),
                      .text = std::move(text),
                      .tokens = tokens,
                      .ended = ended});
    active_[slot].reset();
  }

  CachedModel& model_;
  Waiting& waiting_;
  const Tokenizer& tokenizer_;
  std::span<const std::vector<std::int64_t>> prompts_;
  const WriteOptions& options_;
  const std::function<void(WrittenAnswer)>& done_;
  const std::function<void(std::string_view)>& text_;
  std::vector<std::optional<Sequence>> active_;
  std::vector<Ended> ended_;             ///< answers that were not handed on
  std::size_t ahead_;                    ///< steps that may be on their way
  std::deque<std::vector<Row>> on_way_;  ///< rows of the steps that are, the first is first
  std::size_t steps_of_free_slots_ = 0;  ///< since prompts were read: free slots of each step
};

}  // namespace

void write_answers(std::span<CachedModel* const> models, const Tokenizer& tokenizer,
                   std::span<const std::vector<std::int64_t>> prompts, const WriteOptions& options,
                   const std::function<void(WrittenAnswer)>& done,
                   const std::function<void(std::string_view)>& text,
                   const std::function<bool()>& stop) {
  Waiting waiting(prompts.size(), options.samples);
  std::mutex one_at_a_time;
  std::exception_ptr failure;
  std::atomic<bool> failed = false;
  const std::function<void(WrittenAnswer)> hand_on = [&](WrittenAnswer answer) {
    const std::lock_guard lock(one_at_a_time);
    done(std::move(answer));
  };
  const auto write = [&](CachedModel& model) {
    try {
      make_current(model.device());
      Writing writing(model, waiting, tokenizer, prompts, options, hand_on, text);
      while (!failed && writing.step()) {
        if (stop && stop()) break;
      }
      writing.hand_on_ended();
    } catch (...) {
      const std::lock_guard lock(one_at_a_time);
      if (!failed.exchange(true)) failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    for (CachedModel* model : models.subspan(1))
      others.emplace_back([&write, model] { write(*model); });
    write(*models.front());
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace dstrain
