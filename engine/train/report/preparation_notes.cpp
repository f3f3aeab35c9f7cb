#include "engine/train/report/preparation_notes.h"

namespace dstrain {

void PreparationNotes::progress(double share, const std::string& text) {
  record_.tick();
  const auto now = Clock::now();
  if (share < 1 && now - last_ < std::chrono::seconds(3)) return;
  last_ = now;
  progress_.note(text);
}

}  // namespace dstrain
