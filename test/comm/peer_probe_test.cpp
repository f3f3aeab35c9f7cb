#include "engine/comm/peer_probe.h"

#include <map>
#include <mutex>
#include <utility>

#include "engine/comm/thread_world.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using Pattern = std::vector<std::uint32_t>;

/// GPUs of a host whose copies a driver may lose or blank.
class Copies {
 public:
  enum class Fault { none, lost, zeros, other };
  explicit Copies(Fault fault) : fault_(fault) {}

  /// Between ranks 0 and 1 all is well.
  comm::PeerPaths paths(int rank) {
    return {.begin =
                [this, rank](int peer, Pattern pattern) {
                  const std::scoped_lock lock(mutex_);
                  const bool broken = rank + peer > 1 && fault_ != Fault::none;
                  if (broken && fault_ == Fault::lost) return true;
                  if (broken && fault_ == Fault::zeros) pattern.assign(pattern.size(), 0);
                  if (broken && fault_ == Fault::other) pattern.back() ^= 1U << 31U;
                  arrived_[{rank, peer}] = std::move(pattern);
                  return true;
                },
            .said =
                [this, rank](int peer) {
                  const std::scoped_lock lock(mutex_);
                  return arrived_.contains({peer, rank});
                },
            .arrived =
                [this, rank](int peer) {
                  const std::scoped_lock lock(mutex_);
                  return arrived_.at({peer, rank});
                },
            .words = 1000};
  }

 private:
  Fault fault_;
  std::mutex mutex_;
  std::map<std::pair<int, int>, Pattern> arrived_;
};

/// What each of three ranks hears.
std::vector<std::string> heard(Copies::Fault fault) {
  constexpr int kRanks = 3;
  Copies copies(fault);
  std::vector<std::string> texts(kRanks);
  ThreadWorld world(kRanks);
  world.run([&](int rank) {
    const comm::Group group = {.name = "tensor", .rank = rank, .size = kRanks, .timeout_s = 20};
    texts.at(static_cast<std::size_t>(rank)) =
        comm::probe_peers(*world.store(), group, copies.paths(rank), /*patience_s=*/0.2);
  });
  return texts;
}

TEST_CASE("copies between GPUs are used after a pattern has arrived whole", "[comm]") {
  using Fault = Copies::Fault;
  for (const std::string& text : heard(Fault::none)) CHECK(text.empty());
  for (const auto& [fault, words] : {std::pair(Fault::lost, "do not arrive"),
                                     {Fault::zeros, "arrive wrong"},
                                     {Fault::other, "arrive wrong"}}) {
    const std::vector<std::string> texts = heard(fault);
    CHECK(texts[0] == texts[1]);
    CHECK(texts[0] == texts[2]);
    CHECK(texts[0].find(std::string("rank 2 to rank 0 ") + words) != std::string::npos);
    CHECK(texts[0].find("NCCL is used") != std::string::npos);
  }
}

}  // namespace
}  // namespace dstrain
