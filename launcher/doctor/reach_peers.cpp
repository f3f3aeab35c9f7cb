#include "launcher/doctor/reach_peers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "engine/base/error.h"

namespace dstrain::launcher {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kMaxForAllPairs = 32;
constexpr int kPeersAbove = 8;
constexpr std::size_t kMaxPeers = 8;

std::string kind_of_errno(int error) {
  switch (error) {
    case ECONNREFUSED:
      return "refused";
    case ETIMEDOUT:
      return "timeout";
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EHOSTDOWN:
      return "no route";
    default:
      return std::strerror(error);
  }
}

std::string join_some(const std::vector<std::string>& names) {
  if (names.size() <= kMaxPeers) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{} and {} more", fmt::join(names.begin(), names.begin() + kMaxPeers, ", "),
                     names.size() - kMaxPeers);
}

}  // namespace

ListeningSocket listen_for_peers() {
  // No accept is needed: the kernel completes the connections by itself.
  for (const char* any : {"::", "0.0.0.0"}) {
    try {
      return listen_on(any, 0);
    } catch (const Error&) {
      continue;  // a kernel without IPv6, or without a free descriptor
    }
  }
  return {};
}

std::vector<PeerProblem> reach_peers(const std::vector<Peer>& peers, milliseconds limit) {
  const auto until = Clock::now() + limit;
  std::vector<PeerProblem> problems;
  std::vector<std::pair<int, UniqueFd>> open;
  for (const Peer& peer : peers) {
    int error = 0;
    UniqueFd fd = start_connecting(peer.address, peer.port, error);
    if (error == EINPROGRESS) {
      open.emplace_back(peer.node, std::move(fd));
    } else if (error != 0) {
      problems.push_back({peer.node, kind_of_errno(error)});
    }
  }
  while (!open.empty()) {
    std::vector<pollfd> fds;
    for (const auto& [node, fd] : open) fds.push_back({fd.get(), POLLOUT, 0});
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
    if (left <= 0) break;
    ::poll(fds.data(), fds.size(), static_cast<int>(left));
    for (std::size_t i = open.size(); i-- > 0;) {
      if (fds[i].revents == 0) continue;
      int error = 0;
      socklen_t size = sizeof(error);
      ::getsockopt(fds[i].fd, SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) problems.push_back({open[i].first, kind_of_errno(error)});
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  for (const auto& [node, fd] : open) problems.push_back({node, "timeout"});
  return problems;
}

std::vector<std::vector<int>> choose_peers(int num_hosts) {
  std::set<int> distances;
  if (num_hosts <= kMaxForAllPairs) {
    for (int distance = 1; distance < num_hosts; ++distance) distances.insert(distance);
  } else {
    std::minstd_rand random(std::random_device{}());
    std::uniform_int_distribution<int> distance(2, num_hosts - 1);
    distances.insert(1);
    while (static_cast<int>(distances.size()) < kPeersAbove) distances.insert(distance(random));
  }
  std::vector<std::vector<int>> peers(static_cast<std::size_t>(num_hosts));
  for (int host = 0; host < num_hosts; ++host) {
    for (const int distance : distances)
      peers[static_cast<std::size_t>(host)].push_back((host + distance) % num_hosts);
  }
  return peers;
}

std::vector<PairFinding> explain_pairs(std::vector<UnreachedPair> pairs,
                                       const std::vector<std::vector<int>>& tried,
                                       const std::vector<std::string>& names) {
  std::vector<PairFinding> findings;
  const std::vector<UnreachedPair> all = pairs;
  const auto name = [&names](int host) { return names[static_cast<std::size_t>(host)]; };
  while (!pairs.empty()) {
    std::map<int, int> num_pairs;
    for (const UnreachedPair& pair : pairs) {
      // Between two hosts with as many, the one that does not let in what was sent counts more.
      num_pairs[pair.from] += 2;
      num_pairs[pair.to] += 3;
    }
    const int odd =
        std::max_element(num_pairs.begin(), num_pairs.end(), [](const auto& a, const auto& b) {
          return a.second < b.second;
        })->first;
    // Texts that name no host are shared by all hosts that they are true of.
    std::map<std::string, std::vector<std::string>> from;
    std::map<std::string, std::vector<std::string>> to;
    for (const UnreachedPair& pair : pairs) {
      if (pair.to == odd) from[pair.kind].push_back(name(pair.from));
      if (pair.from == odd) to[pair.kind].push_back(name(pair.to));
    }
    const auto add = [&](const char* what, const std::string& kind,
                         const std::vector<std::string>& hosts, bool any) {
      findings.push_back(
          {odd,
           {Level::error,
            fmt::format("{} {} by TCP ({})", what, any ? "any other host" : join_some(hosts), kind),
            "ranks connect to each other on any port: open the network between the hosts, or look "
            "for a wrong interface or route"}});
    };
    const auto own = static_cast<std::size_t>(odd);
    std::size_t num_from = 0;
    for (const std::vector<int>& peers : tried)
      num_from += static_cast<std::size_t>(std::count(peers.begin(), peers.end(), odd));
    const auto count = [&all](int UnreachedPair::* end, int host) {
      return static_cast<std::size_t>(
          std::count_if(all.begin(), all.end(),
                        [end, host](const UnreachedPair& pair) { return pair.*end == host; }));
    };
    const bool any_from = num_from > 1 && count(&UnreachedPair::to, odd) == num_from;
    const bool any_to =
        tried[own].size() > 1 && count(&UnreachedPair::from, odd) == tried[own].size();
    for (const auto& [kind, hosts] : from)
      add("is not reached from", kind, hosts, any_from && from.size() == 1);
    for (const auto& [kind, hosts] : to)
      add("does not reach", kind, hosts, any_to && to.size() == 1);
    std::erase_if(pairs,
                  [odd](const UnreachedPair& pair) { return pair.from == odd || pair.to == odd; });
  }
  return findings;
}

}  // namespace dstrain::launcher
