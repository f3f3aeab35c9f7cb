#pragma once

#include <memory>

#include "engine/data/formats.h"
#include "engine/data/images/packed_images.h"
#include "engine/data/text/progress_sink.h"

namespace dstrain {

/// The packed file of the images of `list`, made first where the cache does not have it, as
/// data.pack says: the shorter side reduced to `side`, JPEG files of quality 95 or pixels. Its name
/// holds a hash of the files' names, sizes, times and labels. Ranks and runs that want the same
/// file wait for the one that makes it; a file that is damaged or cut off is made again. Files that
/// cannot be read are left out and named, or end it, as data.bad_record says. `progress` may be
/// null.
[[nodiscard]] std::shared_ptr<const PackedImages> open_pack(const formats::ImageList& list,
                                                            const DataConfig& data, Split split,
                                                            int side, ProgressSink* progress);

}  // namespace dstrain
