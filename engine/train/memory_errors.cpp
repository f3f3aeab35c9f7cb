#include "engine/train/memory_errors.h"

#include <c10/util/Exception.h>

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

}  // namespace

void with_memory_errors(const std::function<void()>& body) {
  try {
    body();
  } catch (const c10::OutOfMemoryError& error) {
    throw Error(ErrorKind::internal, error.what_without_backtrace(),
                "`dstrain plan` shows what takes the memory");
  } catch (const c10::Error& error) {
    const std::int64_t wanted = wanted_of_host(error.what_without_backtrace());
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
