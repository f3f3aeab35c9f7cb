#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dstrain {

/// What exports call the classes of a model.
struct ClassNames {
  std::vector<std::string> names;  ///< one for each class, or none where nothing names any
  std::string note;                ///< where the head of the weights has learnt others; or empty
};

/// The data's names, in the order of its labels, for as many classes as it has. Rows of the head
/// beyond them have the names of the weights' head, `of_weights`, which are none where a new head
/// is drawn.
[[nodiscard]] ClassNames choose_class_names(const std::vector<std::string>& of_data,
                                            std::vector<std::string> of_weights,
                                            std::int64_t classes);

/// `names`, or the classes' numbers where nothing names them.
[[nodiscard]] std::vector<std::string> names_or_numbers(std::vector<std::string> names,
                                                        int classes);

}  // namespace dstrain
