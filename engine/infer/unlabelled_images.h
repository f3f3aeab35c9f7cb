#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "engine/data/dataset.h"
#include "engine/data/images/image_resize.h"

namespace dstrain {

/// JPEG, PNG and WebP files without labels, for a loader. One that cannot be read becomes a row of
/// zeros and weight 0.
class UnlabelledImages final : public Dataset {
 public:
  /// `channels`: 3, or 1 for grey as PIL's "L" has it.
  UnlabelledImages(std::vector<std::string> files, const SquareResize& resize, int channels)
      : files_(std::move(files)), resize_(resize), channels_(channels) {}

  [[nodiscard]] const std::vector<std::string>& files() const { return files_; }
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(files_.size());
  }
  [[nodiscard]] std::int64_t targets(std::int64_t) const override { return 1; }
  [[nodiscard]] HostBatch allocate(std::int64_t rows, bool pinned) const override;
  void fill(HostBatch& batch, std::int64_t row, std::int64_t index) const override;
  /// Why sample `index`, whose weight is 0, could not be read.
  [[nodiscard]] std::string error(std::int64_t index) const;

 private:
  void read(const std::string& file, std::span<std::uint8_t> pixels) const;

  std::vector<std::string> files_;
  SquareResize resize_;
  int channels_;
  mutable std::mutex large_;  ///< DecodeRequest::large
  mutable std::mutex mutex_;  ///< of errors_
  mutable std::map<std::int64_t, std::string> errors_;
};

/// Image files as a person names them: a file as it is given, a folder's at any depth in the order
/// of their names. Error{usage}: one is not there; Error{data}: a folder has none.
[[nodiscard]] std::vector<std::string> find_image_files(const std::vector<std::string>& given);

}  // namespace dstrain
