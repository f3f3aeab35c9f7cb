#include "engine/trace/request.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/printable.h"
#include "engine/base/run_layout.h"

namespace dstrain::trace {

namespace fs = std::filesystem;

void write_request(const fs::path& run, int steps) {
  const RunLayout layout(run);
  std::error_code error;
  if (!fs::exists(layout.recipe(), error))
    throw Error(ErrorKind::usage, fmt::format("{}: no run is there", printable(run.string())),
                "give the directory of a run, as 'dstrain launch' prints it");
  if (is_requested(run))
    throw Error(ErrorKind::usage,
                fmt::format("{}: a trace has been asked for already",
                            printable(layout.trace_request().string())),
                "wait until the run has taken it; remove the file if the run has ended");
  write_file_atomically(layout.trace_request(),
                        json_text(nlohmann::ordered_json{{"steps", steps}}) + "\n");
}

bool is_requested(const fs::path& run) {
  std::error_code error;
  return fs::exists(RunLayout(run).trace_request(), error);
}

int take_request(const fs::path& run) {
  const fs::path file = RunLayout(run).trace_request();
  if (!is_requested(run)) return 0;
  int steps = 0;
  try {
    const nlohmann::json request = read_json_object(file);
    const auto found = request.find("steps");
    if (found != request.end() && found->is_number_integer()) {
      const auto wanted = found->get<std::int64_t>();
      if (wanted >= 1 && wanted <= kMaxTraceSteps) steps = static_cast<int>(wanted);
    }
  } catch (const Error&) {
    // What cannot be read is no request.
  }
  // A file that stays would be taken again and again.
  std::error_code error;
  return fs::remove(file, error) ? steps : 0;
}

}  // namespace dstrain::trace
