#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/report/document_writer.h"
#include "engine/report/svg.h"
#include "engine/report/words.h"

namespace dstrain::report {
namespace {

constexpr std::size_t kLines = 8;  // of a chart; the colours of the style
constexpr std::size_t kHostsShown = 32;

std::string percent_words(double percent) {
  return std::isfinite(percent) ? fmt::format("{:.0f} %", percent) : "-";
}

std::string mebibyte_words(double mebibytes) {
  return std::isfinite(mebibytes) ? fmt::format("{:.0f} MiB", mebibytes) : "-";
}

Table host_table(std::size_t run, const std::vector<HostFigures>& hosts) {
  Table table = {
      .header = {"host", "CPU mean", "CPU peak", "memory mean", "memory peak", "fullest GPU"},
      .rows = {}};
  for (std::size_t k = 0; k < std::min(kHostsShown, hosts.size()); ++k) {
    const HostFigures& host = hosts[k];
    const auto cell = [&](const char* name, double value, std::string words) {
      return number_cell(run, fmt::format("hosts.{}.{}", k, name), value, std::move(words));
    };
    table.rows.push_back(
        {{host.host},
         cell("cpu_mean_percent", host.cpu_mean, percent_words(host.cpu_mean)),
         cell("cpu_peak_percent", host.cpu_peak, percent_words(host.cpu_peak)),
         cell("memory_mean_mib", host.memory_mean_mib, mebibyte_words(host.memory_mean_mib)),
         cell("memory_peak_mib", host.memory_peak_mib, mebibyte_words(host.memory_peak_mib)),
         cell("gpu_peak_mib", host.gpu_peak_mib, mebibyte_words(host.gpu_peak_mib))});
  }
  return table;
}

LineChart host_chart(const RunFigures& run, std::string title, std::string description,
                     std::string unit, double CpuSample::* field, double scale) {
  LineChart chart = {.title = std::move(title),
                     .description = std::move(description),
                     .x_label = "seconds",
                     .y_label = std::move(unit),
                     .from_zero = true,
                     .lines = {}};
  const auto add = [&](const std::string& name, const std::vector<CpuSample>& samples) {
    if (samples.empty() || chart.lines.size() == kLines) return;
    Line line = {.name = name, .points = {}};
    for (const CpuSample& sample : samples)
      line.points.push_back({sample.elapsed_s, sample.*field * scale});
    chart.lines.push_back(std::move(line));
  };
  if (!run.hosts.empty()) add(run.hosts.front().host, run.data.cpu);
  for (const HostSamples& host : run.data.other_hosts) add(host.host, host.cpu);
  return chart;
}

}  // namespace

void write_hosts(Writer& w) {
  for (std::size_t i = 0; i < w.report.runs.size(); ++i) {
    const RunFigures& run = w.report.runs[i];
    if (run.hosts.empty()) continue;
    Section& section =
        w.section(w.report.runs.size() == 1 ? "Hosts" : "Hosts: " + run.label, i > 0);
    section.blocks.push_back(host_table(i, run.hosts));
    std::string what = "Of the ranks and the programs that they started; CPU: 100 % is one core.";
    if (run.hosts.size() > kHostsShown)
      what += fmt::format(" {} of {} hosts are shown.", kHostsShown, run.hosts.size());
    section.blocks.push_back(Paragraph{std::move(what)});
    w.line_chart(section,
                 host_chart(run, "CPU", "CPU of all ranks of a host over time", "% of a core",
                            &CpuSample::share, 1),
                 w.report.runs.size());
    w.line_chart(
        section,
        host_chart(run, "Memory of the hosts", "Resident memory of all ranks of a host over time",
                   "GiB", &CpuSample::resident_mib, 1.0 / 1024),
        w.report.runs.size());
  }
}

}  // namespace dstrain::report
