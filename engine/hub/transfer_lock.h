#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

namespace dstrain::hub {

/// Whoever holds it writes `part`: a folder, since file locks hold nobody off on some shared file
/// systems. One that was left behind is taken over: at once where its holder was a process of this
/// machine that is gone, else when the part has not grown for `stale`. Clocks of hosts may differ.
class TransferLock {
 public:
  /// Returns when it is held, or when `done()` is true: then holds() is false.
  TransferLock(std::filesystem::path folder, std::filesystem::path part,
               const std::function<bool()>& done,
               std::chrono::milliseconds stale = std::chrono::minutes(10));
  ~TransferLock();
  TransferLock(const TransferLock&) = delete;
  TransferLock& operator=(const TransferLock&) = delete;

  [[nodiscard]] bool holds() const { return holds_; }
  /// Whether nobody took it over.
  [[nodiscard]] bool is_still_ours() const;

 private:
  [[nodiscard]] bool take() const;
  [[nodiscard]] std::string holder() const;
  void take_away(const std::string& holder) const;

  std::filesystem::path folder_;
  std::filesystem::path part_;
  std::string own_;
  bool holds_ = false;
};

}  // namespace dstrain::hub
