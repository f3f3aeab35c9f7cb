#pragma once

#include <string>
#include <string_view>

#include "engine/data/images/image_decode.h"

namespace dstrain {

/// Whether these are the first bytes of a WebP.
[[nodiscard]] bool is_webp(std::string_view bytes);
/// decode_part() of a WebP, lossy or lossless. Error{data} for an animation.
[[nodiscard]] ImagePart decode_webp(std::string_view bytes, const DecodeRequest& request,
                                    const std::string& name);

}  // namespace dstrain
