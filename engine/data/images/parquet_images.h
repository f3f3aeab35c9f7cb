#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/images/pack_source.h"

namespace dstrain::formats {

/// Images of a split in parquet files as the library `datasets` writes them: a column of
/// struct<bytes, path>, one of whole numbers, names of classes in the schema.
struct ParquetImages {
  std::filesystem::path place = {};  ///< the folder of the files
  std::vector<std::filesystem::path> files = {};
  std::string image = {}, label = {};  ///< columns
  int classes = 0;
  std::vector<std::string> class_names = {};  ///< by label; none where the schema has none
  int side = 0;                               ///< that all images have; 0: any
};

/// Whether `folder` is one of such files.
[[nodiscard]] bool holds_parquet_images(const std::filesystem::path& folder);
/// Those of data.path, the label's column as data.label says; else fine_label, or the only column
/// of classes. Error{data} or Error{usage} where they cannot be told.
[[nodiscard]] ParquetImages find_parquet_images(const DataConfig& data, Split split);
/// Rows of all files.
[[nodiscard]] std::int64_t count_rows(const ParquetImages& images);
[[nodiscard]] std::unique_ptr<PackSource> parquet_source(ParquetImages images);
/// The images of data.path, resized as those of files are; always packed, as they are without
/// data.pack.
[[nodiscard]] std::unique_ptr<ImageDataset> open_parquet_images(const DataConfig& data, Split split,
                                                                int image_size,
                                                                ProgressSink* progress);
/// Error{usage} where data.label is set: images in folders have no columns.
void refuse_label(const DataConfig& data);

}  // namespace dstrain::formats
