#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "engine/report/document.h"
#include "engine/report/svg.h"

namespace dstrain::report {

/// A document while its sections are written.
struct Writer {
  const Report& report;
  bool pictures;
  Document document = {};

  Section& section(std::string title, bool folded = false) {
    document.sections.push_back({.title = std::move(title), .blocks = {}, .folded = folded});
    return document.sections.back();
  }
  /// A chart of which the page has `charts` much alike.
  void line_chart(Section& section, LineChart chart, std::size_t charts) const;
  void picture(Section& section, std::string svg) const {
    if (pictures && !svg.empty()) section.blocks.push_back(Picture{std::move(svg)});
  }
};

/// A number that stands at runs.RUN.FIGURE of the JSON.
[[nodiscard]] Cell number_cell(std::size_t run, std::string_view figure, double value,
                               std::string words);

/// What of the wall time was training that counted, and what stopped the job.
void write_goodput(Writer& w);
/// Each evaluation of the test split.
void write_evaluations(Writer& w);
/// Where the time of the steps went whose kernels were recorded.
void write_traced_steps(Writer& w);
/// CPU and memory of the ranks, host by host.
void write_hosts(Writer& w);

}  // namespace dstrain::report
