#include "engine/train/report/evaluation_files.h"

#include <fmt/format.h>

#include "engine/base/file.h"
#include "engine/base/run_layout.h"

namespace dstrain {

std::optional<report::Confusion> confusion_of(const EvaluationTotals& totals, const Model& model) {
  if (!totals.confusion.defined()) return std::nullopt;
  report::Confusion confusion{.names = model.class_names, .counts = {}};
  if (confusion.names.empty()) {
    for (int i = 0; i < model.classes; ++i) confusion.names.push_back(fmt::to_string(i));
  }
  const auto* counts = totals.confusion.const_data_ptr<std::int64_t>();
  confusion.counts.assign(counts, counts + totals.confusion.numel());
  return confusion;
}

void write_confusion(const std::filesystem::path& folder, const report::Confusion& confusion) {
  const RunLayout layout(folder);
  write_file_atomically(layout.confusion(), report::confusion_csv(confusion));
  write_file_atomically(layout.classes(), report::classes_csv(confusion));
}

}  // namespace dstrain
