#include "engine/weights/weight_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/base/error.h"
#include "engine/base/finite.h"
#include "engine/weights/narrow_float.h"
#include "engine/weights/safetensors.h"
#include "engine/weights/torch_weights.h"

namespace dstrain {
namespace {

template <class Convert>
void widen(std::span<const std::byte> from, std::span<float> to, Convert convert) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, from.data() + 2 * i, 2);
    to[i] = convert(bits);
  }
}

}  // namespace

bool is_readable(std::string_view dtype) {
  return dtype == "F32" || dtype == "F16" || dtype == "BF16";
}

void to_floats(std::string_view dtype, std::span<const std::byte> from, std::span<float> to) {
  if (dtype == "F32") {
    std::memcpy(to.data(), from.data(), to.size_bytes());
  } else if (dtype == "F16") {
    widen(from, to, half_to_float);
  } else {
    widen(from, to, bfloat16_to_float);
  }
}

void WeightFile::read(const std::string& name, std::int64_t begin, std::span<float> out) const {
  const auto found = entries_.find(name);
  if (found == entries_.end())
    throw Error(ErrorKind::data, fmt::format("{}: no tensor '{}'", path_.string(), name));
  const Entry& entry = found->second;
  if (!is_readable(entry.dtype)) {
    throw Error(ErrorKind::data,
                fmt::format("{}: tensor '{}' is {}", path_.string(), name, entry.dtype),
                "dstrain reads F32, F16 and BF16");
  }
  const std::size_t numel = (entry.end - entry.begin) / (entry.dtype == "F32" ? 4 : 2);
  DSTRAIN_CHECK(begin >= 0 && static_cast<std::size_t>(begin) <= numel &&
                    out.size() <= numel - static_cast<std::size_t>(begin),
                fmt::format("{}: elements [{}, +{}) of '{}', which has {}", path_.string(), begin,
                            out.size(), name, numel));
  if (out.empty()) return;
  read_values(name, entry, begin, out);
  if (const std::int64_t bad = first_non_finite(out); bad >= 0) {
    throw Error(ErrorKind::data,
                fmt::format("{}: tensor '{}' holds {} at element {}", path_.string(), name,
                            out[static_cast<std::size_t>(bad)], begin + bad),
                "nothing can be trained from weights that are not finite: take another file");
  }
}

std::unique_ptr<WeightFile> open_weight_file(const std::filesystem::path& path) {
  if (path.extension() == ".safetensors") return std::make_unique<SafetensorsFile>(path);
  return std::make_unique<TorchWeights>(path);
}

}  // namespace dstrain
