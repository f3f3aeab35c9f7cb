#pragma once

#include <string>

namespace dstrain {

/// Text of a file of TrainingArguments: JSON as it is, training_args.bin as JSON. Nothing of such a
/// file is executed. Error{usage} names the file.
[[nodiscard]] std::string read_settings_file(const std::string& path);

}  // namespace dstrain
