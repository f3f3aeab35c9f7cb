#pragma once

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace dstrain::test {

/// Counts the bytes of all CPU tensors while it lives; one at a time.
class LiveBytes final : public c10::Allocator {
 public:
  LiveBytes() : below_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, kPriority); }
  ~LiveBytes() override { c10::SetCPUAllocator(below_, kPriority); }
  LiveBytes(const LiveBytes&) = delete;
  LiveBytes& operator=(const LiveBytes&) = delete;

  [[nodiscard]] std::int64_t live() const { return counter().live; }
  /// Most bytes at once since the last call, beyond those alive at that call.
  [[nodiscard]] std::int64_t take_peak() {
    const std::int64_t peak = counter().peak - base_;
    base_ = counter().live.load();
    counter().peak = base_;
    return peak;
  }

  c10::DataPtr allocate(std::size_t size) override {
    void* memory = below_->raw_allocate(size);
    counter().add(memory, static_cast<std::int64_t>(size), below_->raw_deleter());
    return {memory, memory, &release, c10::Device(c10::DeviceType::CPU)};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }

 private:
  static constexpr std::uint8_t kPriority = 255;
  /// Tensors may be freed after the allocator has gone, so what they count into stays.
  struct Counter {
    struct Memory {
      std::int64_t size;
      c10::DeleterFnPtr free;
    };
    std::mutex mutex;
    std::unordered_map<void*, Memory> blocks;
    std::atomic<std::int64_t> live = 0;
    std::atomic<std::int64_t> peak = 0;

    void add(void* memory, std::int64_t size, c10::DeleterFnPtr free) {
      if (memory == nullptr) return;
      const std::lock_guard lock(mutex);
      blocks[memory] = {size, free};
      live += size;
      if (live > peak) peak = live.load();
    }
    void remove(void* memory) {
      if (memory == nullptr) return;
      const std::lock_guard lock(mutex);
      const auto block = blocks.extract(memory).mapped();
      live -= block.size;
      block.free(memory);
    }
  };
  static Counter& counter() {
    static Counter counter;
    return counter;
  }
  static void release(void* memory) { counter().remove(memory); }

  c10::Allocator* below_;
  std::int64_t base_ = 0;
};

}  // namespace dstrain::test
