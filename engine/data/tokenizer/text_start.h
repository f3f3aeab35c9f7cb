#pragma once

namespace dstrain {

/// Where a text stands, as far as tokenizers put something before it.
enum class TextStart {
  first,      ///< what is encoded begins with it
  part,       ///< behind an added token
  continued,  ///< it goes on where the text before it ended
};

}  // namespace dstrain
