#include <fmt/format.h>

#include <condition_variable>
#include <map>
#include <mutex>

#include "engine/base/error.h"
#include "engine/store/store.h"

namespace dstrain {
namespace {

class MemoryStore final : public Store {
 public:
  void set(const std::string& key, const std::string& value) override {
    {
      const std::lock_guard lock(mutex_);
      values_[key] = value;
    }
    changed_.notify_all();
  }

  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, timeout, [&] { return values_.contains(key); })) {
      throw Error(ErrorKind::hosts,
                  fmt::format("key '{}' did not come within {} ms", key, timeout.count()),
                  "a rank that should have set it has ended or is late; see its log");
    }
    return values_.at(key);
  }

  std::optional<std::string> try_get(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(key);
    if (found == values_.end()) return std::nullopt;
    return found->second;
  }

  /// A counter is kept as its decimal text, as c10d::TCPStore does, so that get() reads it.
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    std::int64_t sum = amount;
    {
      const std::lock_guard lock(mutex_);
      std::string& text = values_[key];
      if (!text.empty()) sum += std::stoll(text);
      text = std::to_string(sum);
    }
    changed_.notify_all();
    return sum;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

}  // namespace

std::shared_ptr<Store> make_memory_store() { return std::make_shared<MemoryStore>(); }

}  // namespace dstrain
