#include "test/train/sessions.h"

#include <ATen/Parallel.h>

#include "engine/comm/thread_world.h"

namespace dstrain::test {

void with_sessions(int ranks, const std::function<Recipe(int rank)>& recipe_of,
                   const std::function<void(int rank, Session& session)>& body,
                   const std::string& device) {
  ThreadWorld threads(ranks);
  threads.run([&](int rank) {
    at::set_num_threads(1);
    World world;
    world.rank = rank;
    world.size = ranks;
    world.local_size = ranks;
    world.device.name = device;
    world.store = threads.store();
    world.communicator = [&](CommunicatorOptions options) {
      options.rank = rank;
      return make_counting(threads.communicator(options), options);
    };
    RankRecordFile record = RankRecordFile::anonymous();
    Session session(recipe_of(rank), world, record);
    body(rank, session);
  });
}

}  // namespace dstrain::test
