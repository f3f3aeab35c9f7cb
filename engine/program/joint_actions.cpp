#include "engine/program/joint_actions.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "engine/base/index.h"

namespace dstrain {
namespace {

/// What meets: the k-th transfer of a link and direction, or the k-th collective of an axis.
using Key = std::tuple<CommAxis, Lane, int, int>;

Key key_of(const Action& action, const Comm& comm, int rank, int ranks) {
  if (comm.axis != Axis::pipeline) return {comm.axis, Lane::compute, 0, 0};
  const bool sends = comm.op == CommOp::send;
  const bool down = action.lane == Lane::send_down || action.lane == Lane::receive_down;
  const int above = (rank + ranks - 1) % ranks, below = (rank + 1) % ranks;
  const int sender = sends ? rank : down ? above : below;
  return {comm.axis, down ? Lane::send_down : Lane::send_up, sender, 0};
}

}  // namespace

std::vector<std::vector<Member>> joint_actions(std::span<const Program> line) {
  const int ranks = static_cast<int>(line.size());
  std::map<Key, std::vector<Member>> found;
  for (int r = 0; ranks > 1 && r < ranks; ++r) {
    std::map<Key, int> count;
    const std::vector<Action>& actions = line[to_index(r)].actions;
    for (int i = 0; i < static_cast<int>(actions.size()); ++i) {
      for (const Comm& comm : actions[to_index(i)].comm) {
        if (comm.axis != Axis::pipeline && comm.axis != CommAxis::world &&
            comm.axis != CommAxis::ends)
          continue;
        Key key = key_of(actions[to_index(i)], comm, r, ranks);
        std::get<3>(key) = count[key]++;
        found[key].push_back({r, i});
      }
    }
  }
  std::vector<std::vector<Member>> list;
  for (auto& [key, members] : found) list.push_back(std::move(members));
  return list;
}

}  // namespace dstrain
