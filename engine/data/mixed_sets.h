#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/data/dataset.h"
#include "engine/data/text/progress_sink.h"
#include "engine/recipe/datasets.h"

namespace dstrain {

/// The members as one data set, whose indices follow one another, with their order. `data` is that
/// of the mixture.
[[nodiscard]] std::unique_ptr<TextDataset> mix(std::vector<std::unique_ptr<TextDataset>> members,
                                               const DataConfig& data, std::int64_t seed);
/// Error{usage} names data.mixture.N whose images have other classes or another shape than those
/// of the first, or another data.bad_record.
[[nodiscard]] std::unique_ptr<ImageDataset> mix(std::vector<std::unique_ptr<ImageDataset>> members,
                                                const DataConfig& data, std::int64_t seed);

/// Puts a member's name before what is said of it.
class MemberProgress final : public ProgressSink {
 public:
  MemberProgress(ProgressSink* sink, std::string name) : sink_(sink), name_(std::move(name)) {}
  void note(const std::string& text) override { sink_->note(name_ + ": " + text); }
  void progress(double share, const std::string& text) override {
    sink_->progress(share, name_ + ": " + text);
  }

 private:
  ProgressSink* sink_;
  std::string name_;
};

/// Calls `open(set, progress)` for each data set that `data` names and returns what it gives. Of a
/// mixture notes begin with the member's name, errors with data.mixture.N.
template <class Open>
auto each_set(const DataConfig& data, ProgressSink* progress, Open&& open) {
  const std::vector<DataConfig> sets = sets_of(data);
  const std::vector<std::string> names = member_names(data);
  std::vector<decltype(open(data, progress))> opened;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    if (names.empty()) {
      opened.push_back(open(sets[i], progress));
      continue;
    }
    MemberProgress own(progress, names[i]);
    try {
      opened.push_back(open(sets[i], progress == nullptr ? nullptr : &own));
    } catch (const Error& error) {
      throw Error(error.kind(), "data.mixture." + std::to_string(i) + ": " + error.what(),
                  error.hint());
    }
  }
  return opened;
}

}  // namespace dstrain
