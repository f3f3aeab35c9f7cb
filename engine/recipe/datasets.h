#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/recipe/families.h"
#include "engine/recipe/inactive.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// Keys under `data` that the data sets read together.
struct DataKeys {
  std::span<const std::string_view> paths;
  std::optional<Modality> modality;  ///< of the models for which they mean something; none: all
  std::string_view unread;  ///< why they have no effect with a data set, "{}", that reads none
};

/// What recipes know of a data set. Its files are read in engine/data.
struct DatasetRow {
  DatasetName name;
  std::string_view spelling;
  std::string_view text;
  std::optional<Modality> modality = {};  ///< none: of both
  bool needs_path = true;
  std::span<const DataKeys* const> keys;  ///< those that it reads
  /// Files and folders of each form that it comes in; data.path must have those of one. None:
  /// several others would do.
  std::span<const std::span<const std::string_view>> forms = {};
  bool parquet = false;  ///< also images in the Hub's parquet files
};

/// Whether data.path may be a data set of the Hub.
[[nodiscard]] bool may_be_of_hub(const DatasetRow& row);

/// All of them, in the order of DatasetName.
[[nodiscard]] std::span<const DatasetRow> datasets();
[[nodiscard]] const DatasetRow& dataset_row(DatasetName name);
/// Whether it reads the key, such as "data.resize".
[[nodiscard]] bool reads(const DatasetRow& row, std::string_view path);
/// Threads that decode at once by JPEG units of a GPU: more are slower. 0 unless data.decode says
/// so.
[[nodiscard]] int jpeg_lanes(const DataConfig& data);
/// Whether its samples are drawn, not read.
[[nodiscard]] bool is_generated(const DatasetRow& row);
[[nodiscard]] bool fits(const DatasetRow& row, Modality modality);
/// Whether the model's samples are clips of frames.
[[nodiscard]] bool takes_clips(const Recipe& recipe);
/// Images of a sample: data.frames of a clip, which random data are for a model that takes clips.
[[nodiscard]] int frames_of(const Recipe& recipe);
/// The data set that it names, or those of its mixture as data sets alone: with the keys of their
/// member, and the others as `data` has them.
[[nodiscard]] std::vector<DataConfig> sets_of(const DataConfig& data);
/// Whether one of those reads the key.
[[nodiscard]] bool any_reads(const DataConfig& data, std::string_view path);
/// Whether "data.KEY" stands at each member of a mixture, not beside it.
[[nodiscard]] bool is_member_key(std::string_view path);
/// "data.mixture.1.KEY" of "data.KEY".
[[nodiscard]] std::string member_path(std::size_t member, std::string_view path);
/// What people read of its members, each another: the name of the data set, with its path where
/// another has that name, too. None where `data` is no mixture.
[[nodiscard]] std::vector<std::string> member_names(const DataConfig& data);

/// "squad, metamathqa, jsonl or random": those that fit.
[[nodiscard]] std::string datasets_of(Modality modality);

/// The keys under `data` without an effect in `recipe`, whose model takes `modality`.
[[nodiscard]] std::vector<Inactive> inactive_data_keys(const Recipe& recipe, Modality modality);

}  // namespace dstrain
