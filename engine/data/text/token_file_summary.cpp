#include "engine/data/text/token_file_summary.h"

#include <nlohmann/json.hpp>

#include "engine/base/json.h"

namespace dstrain::text {

using Json = nlohmann::json;

std::string format_summary(const TokenFileSummary& s) {
  Json problems = Json::array();
  for (const Problem& p : s.problems) problems.push_back({{"record", p.record}, {"text", p.text}});
  Json json = {{"first_records", s.first_records},
               {"num_records", s.num_records},
               {"num_problems", s.num_problems},
               {"problems", problems},
               {"pad", s.pad},
               {"end", s.end},
               {"highest", s.highest},
               {"highest_record", s.highest_record},
               {"tokenizer", s.tokenizer},
               {"set", s.set},
               {"form", s.form},
               {"test", s.test},
               {"marked", s.marked},
               {"special_texts", s.special_texts},
               {"special_record", s.special_record}};
  if (s.shortened > 0)
    json.update({{"shortened", s.shortened}, {"shortened_record", s.shortened_record}});
  return json_text(json);
}

bool parse_summary(std::string_view text, TokenFileSummary& s) {
  try {
    const Json json = parse_json(text, "summary");
    json.at("first_records").get_to(s.first_records);
    json.at("num_records").get_to(s.num_records);
    json.at("num_problems").get_to(s.num_problems);
    for (const Json& p : json.at("problems")) {
      s.problems.push_back({.record = p.at("record"), .text = p.at("text")});
    }
    json.at("pad").get_to(s.pad);
    json.at("end").get_to(s.end);
    json.at("highest").get_to(s.highest);
    json.at("highest_record").get_to(s.highest_record);
    json.at("tokenizer").get_to(s.tokenizer);
    json.at("set").get_to(s.set);
    json.at("form").get_to(s.form);
    json.at("test").get_to(s.test);
    json.at("marked").get_to(s.marked);
    json.at("special_texts").get_to(s.special_texts);
    json.at("special_record").get_to(s.special_record);
    s.shortened = json.value("shortened", std::int64_t{0});
    s.shortened_record = json.value("shortened_record", std::int64_t{0});
    return true;
  } catch (const Json::exception&) {
    return false;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace dstrain::text
