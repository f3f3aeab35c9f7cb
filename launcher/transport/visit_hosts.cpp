#include "launcher/transport/visit_hosts.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>

#include "engine/base/error.h"
#include "launcher/protocol/protocol.h"

namespace dstrain::launcher {
namespace {

using Clock = HostVisit::Clock;
using std::chrono::milliseconds;

constexpr milliseconds kVisitEndLimit{2000};

/// One visit on its way.
class Talk {
 public:
  Talk(HostVisit& visit, Transport& transport, int node)
      : visit_(visit), transport_(transport), node_(node) {}

  [[nodiscard]] bool done() const { return done_; }
  [[nodiscard]] bool talking() const { return channel_.has_value() && !done_; }
  [[nodiscard]] int node() const { return node_; }
  [[nodiscard]] const Channel& channel() const { return *channel_; }
  [[nodiscard]] Clock::time_point deadline() const { return deadline_; }

  void open(AgentLink& link, const VisitOptions& options) {
    if (link.problem) return fail(*link.problem);
    if (!link.channel) return;
    channel_ = std::move(link.channel);
    link.channel.reset();
    deadline_ = Clock::now() + options.answer_limit;
    channel_->send(Hello{.build = options.build});
    take_frames();
  }

  void step() {
    channel_->flush();
    const bool open = channel_->receive();
    take_frames();
    if (!done_ && !open) return fail_ended();
    if (!done_ && Clock::now() >= deadline_) {
      fail({.kind = HostProblem::Kind::timeout,
            .text = "the agent started and did not answer in time",
            .hint = "look at the load of that host, and whether its file systems answer"});
    }
  }

  /// Nobody has the time to wait for it any longer.
  void give_up() {
    transport_.kill(node_);
    visit_.fail({.kind = HostProblem::Kind::timeout, .text = "no answer in time", .hint = ""});
    finish(milliseconds(0));
  }

 private:
  void take_frames() {
    try {
      while (!done_) {
        const auto frame = channel_->next();
        if (!frame) return;
        take(*frame);
      }
    } catch (const Error& error) {
      const bool version = error.kind() == ErrorKind::hosts && !greeted_;
      fail({.kind = version ? HostProblem::Kind::version : HostProblem::Kind::other,
            .text = error.what(),
            .hint = error.hint()});
    }
  }

  void take(const Frame& frame) {
    if (frame.type == FrameType::hello) {
      (void)unpack<Hello>(frame);
      greeted_ = true;
      visit_.greeted(*channel_);
    } else if (frame.type == FrameType::fault) {
      const FaultMessage fault = unpack<FaultMessage>(frame);
      fail({.kind = HostProblem::Kind::other, .text = fault.message, .hint = fault.hint});
    } else if (visit_.take(*channel_, frame)) {
      finish(kVisitEndLimit);
    }
  }

  void fail_ended() {
    channel_.reset();
    const AgentEnding ending = transport_.end(node_, kVisitEndLimit);
    HostProblem problem{.kind = HostProblem::Kind::cannot_run,
                        .text = "the agent ended before it had answered",
                        .hint = "run `dstrain agent </dev/null` there to see why"};
    if (ending.signal != 0) problem.text += fmt::format(" (signal {})", ending.signal);
    if (ending.signal == 0) problem.text += fmt::format(" (exit code {})", ending.exit_code);
    if (!ending.words.empty()) problem.text += ": " + ending.words;
    visit_.fail(std::move(problem));
    done_ = true;
  }

  void fail(HostProblem problem) {
    visit_.fail(std::move(problem));
    finish(kVisitEndLimit);
  }

  /// The agent ends by itself once its input is closed.
  void finish(milliseconds limit) {
    done_ = true;
    if (!channel_) return;
    channel_.reset();
    (void)transport_.end(node_, limit);
  }

  HostVisit& visit_;
  Transport& transport_;
  int node_;
  std::optional<Channel> channel_;
  Clock::time_point deadline_;
  bool greeted_ = false;
  bool done_ = false;
};

int wait_ms(std::optional<Clock::time_point> first, const std::vector<Talk>& talks) {
  for (const Talk& talk : talks) {
    if (talk.talking() && (!first || talk.deadline() < *first)) first = talk.deadline();
  }
  if (!first) return 1000;
  const auto left = std::chrono::duration_cast<milliseconds>(*first - Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count() + 1, 0, 1000));
}

/// The earlier of two times, either of which may be missing.
std::optional<Clock::time_point> earlier(std::optional<Clock::time_point> a,
                                         std::optional<Clock::time_point> b) {
  if (!a || !b) return a ? a : b;
  return std::min(*a, *b);
}

}  // namespace

void visit_hosts(Transport& transport, const std::vector<HostVisit*>& visits,
                 const VisitOptions& options) {
  std::vector<AgentLink> links(visits.size());
  std::vector<Talk> talks;
  for (std::size_t i = 0; i < visits.size(); ++i)
    talks.emplace_back(*visits[i], transport, static_cast<int>(i));
  transport.advance(links, Clock::now());
  while (!std::all_of(talks.begin(), talks.end(), [](const Talk& talk) { return talk.done(); })) {
    std::vector<pollfd> fds;
    transport.add_polls(fds);
    for (const Talk& talk : talks) {
      if (!talk.talking()) continue;
      fds.push_back({talk.channel().in(), POLLIN, 0});
      if (talk.channel().wants_write()) fds.push_back({talk.channel().out(), POLLOUT, 0});
    }
    ::poll(fds.data(), fds.size(), wait_ms(earlier(transport.deadline(), options.deadline), talks));
    transport.advance(links, Clock::now());
    const bool late = options.deadline && Clock::now() >= *options.deadline;
    for (Talk& talk : talks) {
      if (talk.talking()) {
        talk.step();
      } else if (!talk.done()) {
        talk.open(links[static_cast<std::size_t>(talk.node())], options);
      }
      if (late && !talk.done()) talk.give_up();
    }
  }
}

}  // namespace dstrain::launcher
