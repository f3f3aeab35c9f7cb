#include "engine/comm/thread_world.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/comm/checks.h"
#include "engine/comm/group.h"

namespace dstrain {
namespace {

/// What one rank brings to a collective.
struct Call {
  std::string what;  ///< must be the same on all ranks: operation, elements, dtype, root
  at::Tensor input;
  std::vector<std::int64_t> sent = {};  ///< rows of `input` for each rank, where they differ
};

/// Where the ranks of one group meet.
struct Meeting {
  std::vector<int> ranks;   ///< global ranks, by index
  int joined = 0;           ///< ranks that have made their communicator
  int waiting = 0;          ///< ranks at the present gate
  std::int64_t gate = 0;    ///< gates passed so far
  std::vector<Call> calls;  ///< by index
  std::map<std::pair<int, int>, std::deque<at::Tensor>> mail;  ///< by (from, to)
  std::condition_variable changed;  ///< of its own: others' collectives wake no rank here
};

}  // namespace

/// One mutex for all: worlds are small and live in tests.
struct ThreadWorld::State {
  explicit State(int world_size)
      : size(world_size), ended(static_cast<std::size_t>(world_size), false) {}

  const int size;
  const std::shared_ptr<Store> store = make_memory_store();
  std::mutex mutex;
  std::vector<bool> ended;  ///< by global rank: its body has returned or thrown
  std::exception_ptr first_exception;
  std::map<std::string, std::shared_ptr<Meeting>> meetings;

  /// Waits for `ready`, or until one of `needed` has ended so that it can never be.
  template <class Ready>
  void wait(std::unique_lock<std::mutex>& lock, Meeting& meeting, const comm::Group& group,
            std::string_view operation, const std::vector<int>& needed, Ready&& ready) {
    const auto lost = [&] {
      return std::find_if(needed.begin(), needed.end(),
                          [&](int rank) { return ended[static_cast<std::size_t>(rank)]; });
    };
    const auto timeout = std::chrono::duration<double>(group.timeout_s);
    if (!meeting.changed.wait_for(lock, timeout,
                                  [&] { return ready() || lost() != needed.end(); })) {
      group.fail(operation, fmt::format("no end within {}", format_duration(group.timeout_s)));
    }
    if (!ready()) group.fail(operation, fmt::format("global rank {} has ended", *lost()));
  }
};

namespace {

std::string describe(std::string_view operation, const at::Tensor& x) {
  return fmt::format("{} of {} {}", operation, x.numel(), c10::toString(x.scalar_type()));
}

/// Collectives over the memory of one process. Sums run in rank order, so results are bitwise
/// repeatable.
template <class State>
class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<State> state, comm::Group group,
                     std::shared_ptr<Meeting> meeting)
      : state_(std::move(state)), group_(std::move(group)), meeting_(std::move(meeting)) {}

  int rank() const override { return group_.rank; }
  int size() const override { return group_.size; }
  /// Nothing goes on meanwhile, and nothing is slower: CPU ranks take the way that GPUs take.
  bool overlaps() const override { return true; }

  void all_reduce(at::Tensor& x, ReduceOp op) override {
    comm::check_tensor("all_reduce", x);
    const c10::NoGradGuard no_grad;
    const bool sum = op == ReduceOp::sum;
    at::Tensor result;
    collective({describe(sum ? "all_reduce(sum)" : "all_reduce(max)", x), x, {}}, [&] {
      result = input(0).view({-1}).clone();
      for (int peer = 1; peer < size(); ++peer) {
        const at::Tensor other = input(peer).view({-1});
        if (sum) {
          result.add_(other);
        } else {
          result.copy_(result.maximum(other));
        }
      }
    });
    x.view({-1}).copy_(result);
  }

  void all_gather(at::Tensor& output, const at::Tensor& input_part) override {
    comm::check_parts("all_gather", output, input_part, size());
    const c10::NoGradGuard no_grad;
    at::Tensor whole = output.view({-1});
    const std::int64_t part = input_part.numel();
    // A copy: the part may be a piece of this rank's output.
    collective({describe("all_gather", input_part), input_part.clone(), {}}, [&] {
      for (int peer = 0; peer < size(); ++peer) {
        whole.narrow(0, peer * part, part).copy_(input(peer).view({-1}));
      }
    });
  }

  void reduce_scatter(at::Tensor& output, const at::Tensor& input_whole) override {
    comm::check_parts("reduce_scatter", input_whole, output, size());
    const c10::NoGradGuard no_grad;
    const std::int64_t part = output.numel();
    const auto mine = [&](int peer) {
      return input(peer).view({-1}).narrow(0, group_.rank * part, part);
    };
    at::Tensor result;
    collective({describe("reduce_scatter", input_whole), input_whole, {}}, [&] {
      result = mine(0).clone();
      for (int peer = 1; peer < size(); ++peer) result.add_(mine(peer));
    });
    output.view({-1}).copy_(result);
  }

  void broadcast(at::Tensor& x, int root) override {
    comm::check_tensor("broadcast", x);
    comm::check_rank("broadcast", root, size());
    const c10::NoGradGuard no_grad;
    collective({fmt::format("{} from {}", describe("broadcast", x), root), x, {}}, [&] {
      if (group_.rank != root) x.view({-1}).copy_(input(root).view({-1}));
    });
  }

  void all_to_all(at::Tensor& output, const at::Tensor& input_parts) override {
    comm::check_exchange("all_to_all", output, input_parts, size());
    const c10::NoGradGuard no_grad;
    const std::int64_t part = input_parts.numel() / size();
    at::Tensor to = output.view({-1});
    collective({describe("all_to_all", input_parts), input_parts, {}}, [&] {
      for (int peer = 0; peer < size(); ++peer) {
        to.narrow(0, peer * part, part)
            .copy_(input(peer).view({-1}).narrow(0, group_.rank * part, part));
      }
    });
  }

  void all_to_all(at::Tensor& output, const at::Tensor& input_rows,
                  const ExchangedRows& rows) override {
    comm::check_exchanged_rows("all_to_all", output, input_rows, rows, size());
    const c10::NoGradGuard no_grad;
    const std::string what = fmt::format("all_to_all of rows of {} {}", input_rows.size(1),
                                         c10::toString(input_rows.scalar_type()));
    collective({what, input_rows, rows.sent}, [&] {
      std::int64_t to = 0;
      for (int peer = 0; peer < size(); ++peer) {
        const std::vector<std::int64_t>& sent = meeting_->calls[to_index(peer)].sent;
        const std::int64_t count = sent[to_index(group_.rank)];
        DSTRAIN_CHECK(count == rows.received[to_index(peer)],
                      fmt::format("{}: all_to_all waits for {} rows of rank {}, which sends {}",
                                  group_.text(), rows.received[to_index(peer)], peer, count));
        const std::int64_t from =
            std::accumulate(sent.begin(), sent.begin() + group_.rank, std::int64_t{0});
        output.narrow(0, to, count).copy_(input(peer).narrow(0, from, count));
        to += count;
      }
    });
  }

  /// Does not wait for the receiver.
  void send(const at::Tensor& x, int peer) override {
    comm::check_tensor("send", x);
    comm::check_peer("send", peer, group_.rank, size());
    const c10::NoGradGuard no_grad;
    {
      const std::lock_guard lock(state_->mutex);
      meeting_->mail[{group_.rank, peer}].push_back(x.clone());
    }
    meeting_->changed.notify_all();
  }

  void receive(at::Tensor& x, int peer) override {
    comm::check_tensor("receive", x);
    comm::check_peer("receive", peer, group_.rank, size());
    const c10::NoGradGuard no_grad;
    std::unique_lock lock(state_->mutex);
    std::deque<at::Tensor>& box = meeting_->mail[{peer, group_.rank}];
    state_->wait(lock, *meeting_, group_, "receive",
                 {meeting_->ranks[static_cast<std::size_t>(peer)]},
                 [&] { return cancelled_ || !box.empty(); });
    if (cancelled_) group_.fail("receive", "this rank gives up");
    const at::Tensor sent = box.front();
    box.pop_front();
    DSTRAIN_CHECK(describe("", sent) == describe("", x),
                  fmt::format("receive ({}): sent{}, asked for{}", group_.text(),
                              describe("", sent), describe("", x)));
    x.view({-1}).copy_(sent.view({-1}));
  }

  void barrier() override {
    collective({"barrier", {}, {}}, [] {});
  }

  void cancel() override {
    {
      const std::lock_guard lock(state_->mutex);
      cancelled_ = true;
    }
    meeting_->changed.notify_all();
  }

 private:
  /// What `peer` brought to the present call; valid inside collective's `body`.
  [[nodiscard]] const at::Tensor& input(int peer) const {
    return meeting_->calls[static_cast<std::size_t>(peer)].input;
  }

  /// Runs `body` when all ranks have come, and returns when all have run it: no rank's memory
  /// changes while it is read.
  template <class Body>
  void collective(Call call, Body&& body) {
    const std::string what = call.what;
    {
      const std::lock_guard lock(state_->mutex);
      meeting_->calls[static_cast<std::size_t>(group_.rank)] = std::move(call);
    }
    pass_gate(what);
    for (int peer = 0; peer < size(); ++peer) {
      const std::string& other = meeting_->calls[static_cast<std::size_t>(peer)].what;
      DSTRAIN_CHECK(other == what, fmt::format("{}: {}, but rank {} of the group calls {}",
                                               group_.text(), what, peer, other));
    }
    body();
    pass_gate(what);
  }

  void pass_gate(const std::string& operation) {
    std::unique_lock lock(state_->mutex);
    const std::int64_t gate = meeting_->gate;
    if (++meeting_->waiting == size()) {
      meeting_->waiting = 0;
      ++meeting_->gate;
      meeting_->changed.notify_all();
      return;
    }
    state_->wait(lock, *meeting_, group_, operation, meeting_->ranks,
                 [&] { return meeting_->gate != gate; });
  }

  std::shared_ptr<State> state_;
  comm::Group group_;
  std::shared_ptr<Meeting> meeting_;
  bool cancelled_ = false;
};

}  // namespace

ThreadWorld::ThreadWorld(int size) : state_(std::make_shared<State>(size)) {
  DSTRAIN_CHECK(size > 0, fmt::format("a world of {} ranks", size));
}
ThreadWorld::~ThreadWorld() = default;

void ThreadWorld::run(const std::function<void(int rank)>& body) {
  State& state = *state_;
  std::fill(state.ended.begin(), state.ended.end(), false);
  state.first_exception = nullptr;
  state.meetings.clear();
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < state.size; ++rank) {
      ranks.emplace_back([&state, &body, rank] {
        std::exception_ptr exception;
        try {
          body(rank);
        } catch (...) {
          exception = std::current_exception();
        }
        {
          const std::lock_guard lock(state.mutex);
          state.ended[static_cast<std::size_t>(rank)] = true;
          if (!state.first_exception) state.first_exception = exception;
          for (const auto& [name, meeting] : state.meetings) meeting->changed.notify_all();
        }
      });
    }
  }
  if (state.first_exception) std::rethrow_exception(state.first_exception);
}

std::unique_ptr<Communicator> ThreadWorld::communicator(const CommunicatorOptions& options) {
  comm::Group group = comm::Group::of(options);
  const std::lock_guard lock(state_->mutex);
  std::shared_ptr<Meeting>& meeting = state_->meetings[options.name];
  if (!meeting) {
    meeting = std::make_shared<Meeting>();
    meeting->ranks = options.ranks;
    meeting->calls.resize(options.ranks.size());
  }
  DSTRAIN_CHECK(meeting->ranks == options.ranks,
                fmt::format("group '{}' was made of other ranks before", options.name));
  DSTRAIN_CHECK(++meeting->joined <= group.size,
                fmt::format("the name of group '{}' is used twice", options.name));
  return std::make_unique<ThreadCommunicator<State>>(state_, std::move(group), meeting);
}

std::shared_ptr<Store> ThreadWorld::store() { return state_->store; }

}  // namespace dstrain
