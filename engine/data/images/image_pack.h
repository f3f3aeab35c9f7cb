#pragma once

#include <memory>

#include "engine/data/images/pack_source.h"
#include "engine/data/images/packed_images.h"
#include "engine/data/text/progress_sink.h"

namespace dstrain {

/// How images lie in a packed file.
struct PackForm {
  const DataConfig& data;
  Pack pack;  ///< none: files as they are
  int side;   ///< the shorter side is reduced to it, but of files as they are
};

/// The packed file of `source`, made first where the cache does not have it: JPEG files of quality
/// 95, pixels, or files as they are. Its name holds a hash of what it is made from. Ranks and runs
/// that want the same file wait for the one that makes it; a file that is damaged or cut off is
/// made again. Images that cannot be read are left out and named, or end it, as data.bad_record
/// says. `progress` may be null.
[[nodiscard]] std::shared_ptr<const PackedImages> open_pack(PackSource& source,
                                                            const PackForm& form, Split split,
                                                            ProgressSink* progress);

}  // namespace dstrain
