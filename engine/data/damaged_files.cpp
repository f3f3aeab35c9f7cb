#include "engine/data/damaged_files.h"

#include "engine/base/log.h"

namespace dstrain {
namespace {

constexpr std::size_t kMaxNamed = 50;

}  // namespace

void DamagedFiles::name(const Error& error, const std::string& instead) {
  const std::lock_guard lock(mutex_);
  if (named_.size() > kMaxNamed || !named_.insert(error.what()).second) return;
  if (named_.size() > kMaxNamed) {
    log_warning("more than {} images cannot be used; no more of them are named", kMaxNamed);
  } else {
    log_warning("{}; {}", error.what(), instead);
  }
}

}  // namespace dstrain
