#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/tar_file.h"
#include "engine/data/text/record.h"
#include "engine/data/text/template.h"

/// Samples of a tar as records of text. What is wrong with one names its member, or its key.
namespace dstrain::text {

/// Members of one key (tar_shards.h), each with its ending, in the order of the tar.
struct TarSample {
  std::string key;
  std::vector<std::pair<std::string, TarMember>> members;
};
/// In the order of their first members. Members without key or ending are left out.
[[nodiscard]] std::vector<TarSample> tar_samples(const TarFile& tar);

/// Whether a member of this ending is a sample's JSON object.
[[nodiscard]] bool is_object_ending(std::string_view ending);

/// Fields of a sample are those of its JSON object (KEY.json or .jsn), if there is one, and the
/// texts of its other members, under their endings: {txt} is KEY.txt. Only members that the
/// templates name are read.
void read_tar_fields(const std::filesystem::path& file, const Template& prompt,
                     const Template& response, const RecordSink& sink);

/// The JSON object of each sample, as Record::prompt.
void read_tar_objects(const std::filesystem::path& file, const RecordSink& sink);

}  // namespace dstrain::text
