#include "launcher/job/stop_policy.h"

#include <algorithm>

namespace dstrain::launcher {

void StopPolicy::ask_finish() { finish_asked_ = true; }

void StopPolicy::end(Time now) {
  if (stage_ >= Stage::terminating) return;
  stage_ = Stage::settling;
  grace_ = kGrace;
  deadline_ = now;
}

void StopPolicy::kill(Time now) {
  if (stage_ == Stage::killed) return;
  stage_ = Stage::terminating;
  deadline_ = now;
}

void StopPolicy::failed(Time now, bool peer_only) {
  if (stage_ >= Stage::terminating) return;
  const Time settled = now + (peer_only ? kSettlePeer : kSettle);
  if (stage_ == Stage::running) {
    stage_ = Stage::settling;
    grace_ = peer_only ? kGracePeer : kGrace;
    deadline_ = settled;
  } else {
    deadline_ = std::min(*deadline_, settled);
  }
}

StopPolicy::Order StopPolicy::due(Time now) {
  if (stage_ == Stage::settling && now >= *deadline_) {
    stage_ = Stage::terminating;
    deadline_ = now + grace_;
    return Order::terminate_groups;
  }
  if (stage_ == Stage::terminating && now >= *deadline_) {
    stage_ = Stage::killed;
    deadline_.reset();
    return Order::kill_groups;
  }
  if (stage_ == Stage::running && finish_asked_ && !finish_sent_) {
    finish_sent_ = true;
    return Order::ask_ranks;
  }
  return Order::none;
}

std::optional<StopPolicy::Time> StopPolicy::deadline() const { return deadline_; }

}  // namespace dstrain::launcher
