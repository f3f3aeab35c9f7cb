#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "engine/recipe/config_file.h"
#include "engine/recipe/families.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// The sizes in the file; one that is missing is the family's usual one, or a problem of the file
/// when there is none.
[[nodiscard]] ModelSizes read_sizes(ConfigFile& file, const ModelFamily& family);

/// What the recipe says beside its `weights`, by sizes or by its name, must be what `sizes`, read
/// from there, has.
void compare_sizes(const ModelConfig& recipe, const ModelFamily& family, const ModelSizes& sizes,
                   Problems& problems);

/// Without weights: the sizes of the recipe over those of its name.
[[nodiscard]] ModelSizes named_sizes(const ModelConfig& recipe, const ModelFamily& family);

void check_limits(const ModelFamily& family, const ModelSizes& sizes, Problems& problems);

/// "model.width: 192 is not a multiple of model.heads (7)".
void check_multiple(const char* key, std::int64_t value, const char* of, std::int64_t divisor,
                    Problems& problems);

/// Error{usage} with the problems, if there are any.
void raise_size_problems(const ModelConfig& recipe, const Problems& problems);

/// Adds a note for each of these shares of dropout in the file that is not 0: nothing is dropped.
void note_dropouts(ConfigFile& file, std::initializer_list<const char*> keys,
                   const ModelFamily& family, std::vector<std::string>& notes);

/// Under the names that config.json has for them.
void write_sizes(const ModelFamily& family, const ModelSizes& sizes, nlohmann::json& json);

}  // namespace dstrain
