#include "engine/data/text/tar_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "engine/data/text/json_lines.h"
#include "engine/data/text/jsonl.h"
#include "engine/data/text/tar_shards.h"

namespace dstrain::text {
namespace {

constexpr const char* kMember = "the member";

/// Calls make(tar, sample, record) for each sample, which returns what is wrong with it.
template <class Make>
void for_each_sample(const std::filesystem::path& file, const RecordSink& sink, const Make& make) {
  const TarFile tar(file);
  const std::vector<TarSample> samples = tar_samples(tar);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    Record record{.number = static_cast<std::int64_t>(i) + 1,
                  .share = static_cast<double>(i + 1) / static_cast<double>(samples.size())};
    record.problem = make(tar, samples[i], record);
    sink(std::move(record));
  }
}

/// The member's bytes, unless it is longer than a record: then what is wrong.
std::string read_member(const TarFile& tar, const TarMember& member, std::string& text) {
  if (std::cmp_greater(member.bytes, kMaxRecordBytes))
    return fmt::format("{}: {}", member.name, too_long(static_cast<std::size_t>(member.bytes)));
  text = tar.read(member.offset, member.bytes);
  return "";
}

std::string two_of(const std::string& what, const std::string& one, const std::string& other) {
  return fmt::format("'{}' is in both {} and {}", what, one, other);
}

/// The sample's JSON object; null without one.
std::string find_object(const TarSample& sample, const TarMember*& object) {
  for (const auto& [ending, member] : sample.members) {
    if (!is_object_ending(ending)) continue;
    if (object != nullptr) return two_of(sample.key, object->name, member.name);
    object = &member;
  }
  return "";
}

}  // namespace

bool is_object_ending(std::string_view ending) { return ending == "json" || ending == "jsn"; }

std::vector<TarSample> tar_samples(const TarFile& tar) {
  std::vector<TarSample> samples;
  std::unordered_map<std::string, std::size_t> places;
  for (TarMember& member : tar.members()) {
    std::optional<TarName> name = tar_name(member.name);
    if (!name) continue;
    const auto [place, is_new] = places.emplace(name->key, samples.size());
    if (is_new) samples.push_back({.key = name->key, .members = {}});
    samples[place->second].members.emplace_back(std::move(name->ending), std::move(member));
  }
  return samples;
}

void read_tar_fields(const std::filesystem::path& file, const Template& prompt,
                     const Template& response, const RecordSink& sink) {
  const auto make = [&](const TarFile& tar, const TarSample& sample, Record& record) {
    nlohmann::json fields = nlohmann::json::object();
    std::map<std::string, std::string> members;  // by the field that they say
    std::string text;
    const TarMember* object = nullptr;
    if (auto wrong = find_object(sample, object); !wrong.empty()) return wrong;
    if (object != nullptr) {
      if (auto wrong = read_member(tar, *object, text); !wrong.empty()) return wrong;
      if (auto wrong = read_object(without_byte_order_mark(text), kMember, fields); !wrong.empty())
        return fmt::format("{}: {}", object->name, wrong);
      for (const auto& [name, value] : fields.items()) members.emplace(name, object->name);
    }
    for (const auto& [ending, member] : sample.members) {
      if (!prompt.names(ending) && !response.names(ending)) continue;
      if (&member == object) continue;
      const auto [said, is_new] = members.emplace(ending, member.name);
      if (!is_new) return two_of(ending, said->second, member.name);
      if (auto wrong = read_member(tar, member, text); !wrong.empty()) return wrong;
      if (auto wrong = not_utf8(text, kMember); !wrong.empty())
        return fmt::format("{}: {}", member.name, wrong);
      fields[ending] = std::move(text);
    }
    if (auto wrong = fill_record(fields, prompt, response, record); !wrong.empty())
      return fmt::format("{}: {}", sample.key, wrong);
    return std::string();
  };
  for_each_sample(file, sink, make);
}

void read_tar_objects(const std::filesystem::path& file, const RecordSink& sink) {
  for_each_sample(file, sink, [](const TarFile& tar, const TarSample& sample, Record& record) {
    const TarMember* object = nullptr;
    if (auto wrong = find_object(sample, object); !wrong.empty()) return wrong;
    if (object == nullptr)
      return fmt::format("{}: it has no {}.json, only {}", sample.key, sample.key,
                         sample.members.front().second.name);
    if (auto wrong = read_member(tar, *object, record.prompt); !wrong.empty()) return wrong;
    record.prompt = without_byte_order_mark(record.prompt);
    return std::string();
  });
}

}  // namespace dstrain::text
