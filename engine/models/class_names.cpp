#include "engine/models/class_names.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/printable.h"

namespace dstrain {

ClassNames choose_class_names(const std::vector<std::string>& of_data,
                              std::vector<std::string> of_weights, std::int64_t classes) {
  const auto count = static_cast<std::size_t>(classes);
  if (of_weights.size() != count) of_weights.clear();
  if (of_data.empty() || of_data.size() > count)
    return {.names = std::move(of_weights), .note = {}};
  ClassNames chosen{.names = of_data, .note = {}};
  for (std::size_t i = of_data.size(); i < count; ++i) {
    const bool named =
        !of_weights.empty() && std::ranges::find(of_data, of_weights[i]) == of_data.end();
    chosen.names.push_back(named ? of_weights[i] : fmt::format("LABEL_{}", i));
  }
  for (std::size_t i = 0; i < of_data.size() && !of_weights.empty(); ++i) {
    if (of_weights[i] == of_data[i]) continue;
    chosen.note = fmt::format(
        "model.weights: class {} of its config.json is '{}', of the data '{}': the row of its head "
        "begins as another class; exports have the data's names",
        i, shown(of_weights[i]), shown(of_data[i]));
    break;
  }
  return chosen;
}

std::vector<std::string> names_or_numbers(std::vector<std::string> names, int classes) {
  for (int i = static_cast<int>(names.size()); i < classes; ++i) names.push_back(fmt::to_string(i));
  return names;
}

}  // namespace dstrain
