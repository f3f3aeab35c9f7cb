#pragma once

#include <filesystem>

#include "engine/hub/archives.h"
#include "engine/hub/fetch.h"

namespace dstrain {

/// hub::carry_out() with bytes, rate and remaining time on standard error: a live line on a
/// terminal, elsewhere a line every ten seconds.
void fetch_with_progress(const hub::HubPlaces& places, const hub::FetchPlan& plan);
/// hub::bring_archive() likewise.
void fetch_archive_with_progress(const hub::Archive& archive, const std::filesystem::path& data);

}  // namespace dstrain
