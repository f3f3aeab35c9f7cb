#include "engine/data/tokenizer/metaspace.h"

#include "engine/data/tokenizer/json_fields.h"
#include "engine/data/tokenizer/utf8.h"

namespace dstrain {

Metaspace read_metaspace(const nlohmann::json& json, const std::string& path,
                         const std::string& place) {
  const JsonFields fields(json, path, place);
  Metaspace result{.replacement = fields.required_text("replacement")};
  if (result.replacement.empty() ||
      code_point_at(result.replacement, 0).length != result.replacement.size())
    fields.refuse("replacement", "one character");
  const std::string scheme = fields.text("prepend_scheme", "always");
  if (scheme == "first") {
    result.prepend = Metaspace::Prepend::first;
  } else if (scheme == "never") {
    result.prepend = Metaspace::Prepend::never;
  } else if (scheme != "always") {
    fields.refuse("prepend_scheme", "always, first or never");
  }
  // Files of before prepend_scheme; `tokenizers` reads no others that say false.
  if (!fields.flag("add_prefix_space", true) && result.prepend != Metaspace::Prepend::never)
    fields.refuse("add_prefix_space", "true, or a prepend_scheme of never beside it");
  result.split = fields.flag("split", true);
  return result;
}

}  // namespace dstrain
