#include "cmd/overrides.h"

namespace dstrain {

void add_overrides(CLI::App& app, std::vector<std::string>& overrides) {
  app.add_option("--set", overrides, "Override a value: path.to.key=value. Repeatable.")
      ->allow_extra_args(false);
}

}  // namespace dstrain
