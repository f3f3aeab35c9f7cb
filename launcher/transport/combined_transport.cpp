#include <algorithm>

#include "launcher/transport/transport.h"

namespace dstrain::launcher {
namespace {

class CombinedTransport final : public Transport {
 public:
  explicit CombinedTransport(std::vector<std::unique_ptr<Transport>> parts)
      : parts_(std::move(parts)) {}

  void add_polls(std::vector<pollfd>& fds) const override {
    for (const auto& part : parts_) part->add_polls(fds);
  }

  void advance(std::vector<AgentLink>& links, Time now) override {
    for (const auto& part : parts_) part->advance(links, now);
  }

  [[nodiscard]] std::optional<Time> deadline() const override {
    std::optional<Time> first;
    for (const auto& part : parts_) {
      const std::optional<Time> time = part->deadline();
      if (time && (!first || *time < *first)) first = time;
    }
    return first;
  }

  AgentEnding end(int node, std::chrono::milliseconds limit) override {
    AgentEnding result;
    for (const auto& part : parts_) {
      const AgentEnding ending = part->end(node, limit);
      if (ending.signal != 0 || ending.exit_code != 0 || !ending.words.empty()) result = ending;
    }
    return result;
  }

  void kill(int node) override {
    for (const auto& part : parts_) part->kill(node);
  }

 private:
  std::vector<std::unique_ptr<Transport>> parts_;
};

}  // namespace

std::unique_ptr<Transport> combine(std::vector<std::unique_ptr<Transport>> parts) {
  return std::make_unique<CombinedTransport>(std::move(parts));
}

}  // namespace dstrain::launcher
