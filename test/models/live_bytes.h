#pragma once

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstdint>

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
    c10::DataPtr memory = below_->allocate(size);
    counter().live += static_cast<std::int64_t>(size);
    if (counter().live > counter().peak) counter().peak = counter().live.load();
    auto* block = new Memory{std::move(memory), static_cast<std::int64_t>(size)};
    return {block->memory.get(), block, &release, c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }

 private:
  static constexpr std::uint8_t kPriority = 255;
  struct Memory {
    c10::DataPtr memory;
    std::int64_t size;
  };
  /// Tensors may be freed after the allocator has gone, so what they count into stays.
  struct Counter {
    std::atomic<std::int64_t> live = 0;
    std::atomic<std::int64_t> peak = 0;
  };
  static Counter& counter() {
    static Counter counter;
    return counter;
  }
  static void release(void* block) {
    auto* memory = static_cast<Memory*>(block);
    counter().live -= memory->size;
    delete memory;
  }

  c10::Allocator* below_;
  std::int64_t base_ = 0;
};

}  // namespace dstrain::test
