#include "engine/train/report/evaluation_files.h"

#include "engine/base/file.h"
#include "engine/base/run_layout.h"
#include "engine/models/class_names.h"

namespace dstrain {

std::optional<report::Confusion> confusion_of(const EvaluationTotals& totals, const Model& model) {
  if (!totals.confusion.defined()) return std::nullopt;
  report::Confusion confusion{.names = names_or_numbers(model.class_names, model.classes),
                              .counts = {}};
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
