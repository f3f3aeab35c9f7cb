#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace dstrain {

/// One value under its tag, as TensorBoard shows it: "train/loss".
struct Scalar {
  std::string_view tag;
  double value = 0;
};

/// The bytes of TensorBoard event files: records with masked CRC-32C around protocol buffers
/// (tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto).
namespace tensorboard {

[[nodiscard]] std::uint32_t crc32c(std::string_view bytes);
[[nodiscard]] std::string record(std::string_view event);
[[nodiscard]] std::string version_event(double wall_time_s);
/// Tells the reader to forget what older files say of `step` and later.
[[nodiscard]] std::string start_event(double wall_time_s, std::int64_t step);
[[nodiscard]] std::string scalar_event(double wall_time_s, std::int64_t step,
                                       std::span<const Scalar> scalars);
/// "events.out.tfevents.<seconds>.<host>.<pid>": the order of the names is the order of the files.
[[nodiscard]] std::string file_name(double wall_time_s);

}  // namespace tensorboard
}  // namespace dstrain
