#include "engine/train/execute/memory_errors.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <new>
#include <string>
#include <string_view>
#include <system_error>

#include "engine/base/host_memory.h"
#include "engine/base/limits.h"

namespace dstrain {
namespace {

/// Bytes that LibTorch's allocator of host memory was asked for; 0 when `text` is no such error.
/// c10/core/impl/alloc_cpu.cpp: "DefaultCPUAllocator: can't allocate memory: you tried to allocate
/// 123 bytes." or "DefaultCPUAllocator: not enough memory: you tried to allocate 123 bytes."
std::int64_t wanted_of_host(std::string_view text) {
  constexpr std::string_view kTried = "you tried to allocate ";
  if (text.find("DefaultCPUAllocator") == std::string_view::npos) return 0;
  const auto at = text.find(kTried);
  if (at == std::string_view::npos) return 0;
  return std::strtoll(std::string(text.substr(at + kTried.size(), 20)).c_str(), nullptr, 10);
}

/// What stands in `text` between `before` and `after`; empty: they do not follow one another.
std::string_view between(std::string_view text, std::string_view before, std::string_view after) {
  const auto at = text.find(before);
  if (at == std::string_view::npos) return {};
  text.remove_prefix(at + before.size());
  const auto end = text.find(after);
  return end == std::string_view::npos ? std::string_view() : text.substr(0, end);
}

constexpr const char* kDeviceHint =
    "lower batch.micro, set memory.recompute: blocks, or share more among ranks with "
    "parallel.zero.stage; `dstrain plan` shows what takes the memory";

}  // namespace

std::string device_memory_text(std::string_view text) {
  const auto asked = between(text, "Tried to allocate ", ". ");
  const auto device = between(text, ". GPU ", " has a total capacity");
  const auto all = between(text, "total capacity of ", " of which ");
  const auto free = between(text, " of which ", " is free");
  if (asked.empty() || device.empty() || all.empty() || free.empty())
    return std::string(kDeviceOutOfMemory);
  return fmt::format("{}: {} asked for, {} of {} free on GPU {}", kDeviceOutOfMemory, asked, free,
                     all, device);
}

void with_memory_errors(const std::function<void()>& body) {
  try {
    body();
  } catch (const c10::OutOfMemoryError& error) {
    throw Error(ErrorKind::internal, device_memory_text(error.what_without_backtrace()),
                kDeviceHint);
  } catch (const c10::Error& error) {
    const std::string_view text = error.what_without_backtrace();
    // A buffer of the driver or of a library, which the allocator does not see.
    if (text.find("CUDA error: out of memory") != std::string_view::npos)
      throw Error(ErrorKind::internal, device_memory_text(text), kDeviceHint);
    const std::int64_t wanted = wanted_of_host(text);
    if (wanted == 0) throw;
    throw host_memory_error(wanted);
  } catch (const std::bad_alloc&) {
    throw host_memory_error(0);
  } catch (const std::system_error& error) {  // of a thread that cannot be started, too
    if (const auto memory = address_space_error(error.code())) throw *memory;
    throw;
  }
}

}  // namespace dstrain
