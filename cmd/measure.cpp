#include "engine/train/measure/measure.h"

#include "cmd/command.h"
#include "engine/base/output.h"

namespace dstrain {

Command add_measure(CLI::App& root) {
  CLI::App* app = root.add_subcommand(
      "measure", "Measure this machine's rates for plan and launch; `dstrain doctor --measure`.");
  return {app, [] {
            const std::filesystem::path file = measured_file_to_write();
            const MeasuredRates rates =
                measure_rates([](const std::string& line) { print_text("{}\n", line); });
            save_measured(file, rates);
            print_text("{}: written to {}; plan and launch use it on this kind of device\n",
                       rates.device, file.string());
            return 0;
          }};
}

}  // namespace dstrain
