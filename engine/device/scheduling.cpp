#include "engine/device/scheduling.h"

#include <sched.h>
#include <sys/types.h>

#include <charconv>
#include <filesystem>
#include <string>
#include <system_error>

namespace dstrain {

void schedule_as_batch() {
  const sched_param none{};
  std::error_code ended;  // a thread may end meanwhile
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", ended)) {
    const std::string name = entry.path().filename();
    pid_t thread = 0;
    std::from_chars(name.data(), name.data() + name.size(), thread);
    if (thread > 0 && ::sched_getscheduler(thread) == SCHED_OTHER)
      (void)::sched_setscheduler(thread, SCHED_BATCH, &none);
  }
}

}  // namespace dstrain
