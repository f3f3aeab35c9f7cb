#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "engine/data/text/record.h"
#include "engine/data/text/template.h"

namespace dstrain::text {

/// One JSON object per line; blank lines are passed over. A record's number is its line; samples of
/// the same prompt are one group.
void read_jsonl(const std::filesystem::path& file, const Template& prompt, const Template& response,
                const RecordSink& sink);

/// What is wrong with bytes of `what` ("the line"); empty where they are UTF-8.
[[nodiscard]] std::string not_utf8(std::string_view text, std::string_view what);
/// Makes `object` of a record's JSON, bytes of `what`; returns what is wrong, or nothing.
[[nodiscard]] std::string read_object(std::string_view json, std::string_view what,
                                      nlohmann::json& object);
/// Puts an object into the record's words; returns what is wrong, or nothing.
[[nodiscard]] std::string fill_record(const nlohmann::json& object, const Template& prompt,
                                      const Template& response, Record& record);

}  // namespace dstrain::text
