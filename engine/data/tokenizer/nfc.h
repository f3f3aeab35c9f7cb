#pragma once

#include <string>
#include <string_view>

namespace dstrain {

/// Canonical composition (Unicode Standard Annex 15) of valid UTF-8, with what `tokenizers` does
/// not know left as it is (unicode.h). The result is `text` itself where nothing can change, else a
/// view of `buffer`.
[[nodiscard]] std::string_view nfc(std::string_view text, std::string& buffer);

}  // namespace dstrain
