#pragma once

#include <string>
#include <vector>

#include "engine/program/program.h"

namespace dstrain {

/// The rules of `check` about programs of one pipeline that run beside each other. Each program
/// must be sound alone. Appends a sentence for each broken rule to `problems`.
void check_line(const std::vector<Program>& line, const ModelCost& cost,
                std::vector<std::string>& problems);

}  // namespace dstrain
