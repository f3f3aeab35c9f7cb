#pragma once

#include <dlfcn.h>

#include <memory>

namespace dstrain {

// The part of NVML's stable C interface that is used here, from its reference manual; nvml.h is not
// among the headers that a build needs.
using NvmlDevice = void*;

/// NVIDIA's management library (libnvidia-ml.so.1, loaded when this is made). It makes no context
/// on a GPU. A machine without it has no driver and no GPUs.
class Nvml {
 public:
  Nvml() : handle_(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    ready_ = call<int()>("nvmlInit_v2");
  }
  ~Nvml() {
    if (ready_) call<int()>("nvmlShutdown");
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  [[nodiscard]] bool ready() const { return ready_; }

  /// False when the library lacks the function or it fails.
  template <class Signature, class... Args>
  bool call(const char* name, Args... args) const {
    if (!handle_) return false;
    // The cast is how POSIX hands out functions.
    auto* function = reinterpret_cast<Signature*>(::dlsym(handle_.get(), name));
    return function != nullptr && function(args...) == 0;
  }

 private:
  struct CloseLibrary {
    void operator()(void* handle) const { ::dlclose(handle); }
  };
  std::unique_ptr<void, CloseLibrary> handle_;
  bool ready_ = false;
};

}  // namespace dstrain
