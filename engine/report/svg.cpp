#include "engine/report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/base/printable.h"
#include "engine/report/kernel_name.h"
#include "engine/report/words.h"

namespace dstrain::report {
namespace {

constexpr double kWidth = 720;
constexpr double kLeft = 64;
constexpr double kRight = 16;
constexpr double kPlotWidth = kWidth - kLeft - kRight;
constexpr int kColors = 8;  // classes c0 to c7 of the style

std::string svg_begin(double height, std::string_view title, std::string_view description,
                      std::string_view kind) {
  return fmt::format(
      "<svg class=\"chart {}\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" tabindex=\"0\">"
      "<title>{}</title><desc>{}</desc>",
      kind, kWidth, height, escape_html(title), escape_html(description));
}

std::string svg_text(double x, double y, std::string_view kind, std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\">{}</text>", x, y, kind,
                     escape_html(text));
}

std::string legend(const std::vector<std::string>& names, double y) {
  std::string out;
  double x = kLeft;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string name = shown(names[i], 40);
    const double width = 24 + 6.6 * static_cast<double>(name.size());
    if (x > kLeft && x + width > kWidth) {
      x = kLeft;
      y += 18;
    }
    out += fmt::format(
        "<g class=\"key\" data-series=\"{}\" tabindex=\"0\" role=\"button\" aria-pressed=\"true\">"
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"11\" height=\"11\" rx=\"2\" class=\"f{}\"/>{}</g>",
        i, x, y - 10, i % kColors, svg_text(x + 16, y, "t", name));
    x += width + 10;
  }
  return out;
}

double legend_height(const std::vector<std::string>& names) {
  double x = 0;
  double rows = 1;
  for (const std::string& name : names) {
    const double width = 24 + 6.6 * static_cast<double>(std::min<std::size_t>(name.size(), 40));
    if (x > 0 && kLeft + x + width > kWidth) {
      x = 0;
      ++rows;
    }
    x += width + 10;
  }
  return rows * 18;
}

std::string tick_words(double value, double step) {
  const double size = std::abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-4)) return fmt::format("{:.3g}", value);
  const int decimals = std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 6);
  return fmt::format("{:.{}f}", value, decimals);
}

double spacing(const std::vector<double>& ticks) {
  return ticks.size() > 1 ? ticks[1] - ticks[0] : 1;
}

std::string x_axis(double low, double high, double bottom, double top, std::string_view label) {
  std::string out;
  const std::vector<double> ticks = axis_ticks(low, high, 7);
  for (const double tick : ticks) {
    if (tick < low || tick > high) continue;
    const double x = kLeft + (tick - low) / (high - low) * kPlotWidth;
    out += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" class=\"grid\"/>", x,
        top, bottom);
    out += svg_text(x, bottom + 16, "t mid", tick_words(tick, spacing(ticks)));
  }
  return out + svg_text(kLeft + kPlotWidth / 2, bottom + 32, "t mid dim", label);
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::vector<double> axis_ticks(double low, double high, int count) {
  if (!(high > low) || count < 1) return {low};
  const double rough = (high - low) / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  // Numbers at the ends of what a double holds have no round ones near.
  if (!(power > 0) || !std::isfinite(power * 10)) return {low, high};
  double step = power * 10;
  for (const double nice : {1.0, 2.0, 5.0}) {
    if (nice * power >= rough) {
      step = nice * power;
      break;
    }
  }
  std::vector<double> ticks;
  const double first = std::floor(low / step);
  for (int i = 0; i <= 4 * count && (first + i - 1) * step < high; ++i)
    ticks.push_back((first + i) * step);
  return ticks;
}

std::string draw_lines(const LineChart& chart) {
  std::vector<Line> lines;
  double low_x = INFINITY, high_x = -INFINITY, low_y = INFINITY, high_y = -INFINITY;
  for (const Line& line : chart.lines) {
    std::vector<Point> finite;
    for (const Point& point : line.points) {
      if (!std::isfinite(point.x) || !std::isfinite(point.y)) continue;
      finite.push_back(point);
      low_x = std::min(low_x, point.x);
      high_x = std::max(high_x, point.x);
      low_y = std::min(low_y, point.y);
      high_y = std::max(high_y, point.y);
    }
    lines.push_back({line.name, thin(finite, chart.max_points), line.dots});
  }
  if (!std::isfinite(low_x) || high_y - low_y > 1e300) return {};
  if (chart.from_zero) low_y = std::min(0.0, low_y);
  if (high_x <= low_x) high_x = low_x + 1;
  if (high_y <= low_y) high_y = low_y + std::max(1e-9, std::abs(low_y) * 0.1);
  const std::vector<double> ticks = axis_ticks(low_y, high_y, 5);
  low_y = std::min(low_y, ticks.front());
  high_y = std::max(high_y, ticks.back());

  std::vector<std::string> names;
  for (const Line& line : lines) names.push_back(line.name);
  const double top = 14 + (names.size() > 1 ? legend_height(names) : 0);
  const double bottom = top + 200;
  const auto x_of = [&](double x) { return kLeft + (x - low_x) / (high_x - low_x) * kPlotWidth; };
  const auto y_of = [&](double y) {
    return bottom - (y - low_y) / (high_y - low_y) * (bottom - top);
  };

  std::string out = svg_begin(bottom + 40, chart.title, chart.description, "lines");
  if (names.size() > 1) out += legend(names, 14);
  for (const double tick : ticks) {
    out += fmt::format(
        "<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" class=\"grid\"/>", kLeft,
        kLeft + kPlotWidth, y_of(tick), y_of(tick));
    out += svg_text(kLeft - 8, y_of(tick) + 4, "t end", tick_words(tick, spacing(ticks)));
  }
  out += x_axis(low_x, high_x, bottom, top, chart.x_label);
  out += fmt::format(
      "<text transform=\"rotate(-90)\" x=\"{:.1f}\" y=\"12\" class=\"t mid dim\">{}</text>",
      -(top + bottom) / 2, escape_html(chart.y_label));
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::string path;
    std::string dots;
    std::string values;  // what the script shows at the pointer
    for (const Point& point : lines[i].points) {
      path +=
          fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x_of(point.x), y_of(point.y));
      values += fmt::format("{:.6g} {:.5g} ", point.x, point.y);
      if (lines[i].dots)
        dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" class=\"f{}\"/>",
                            x_of(point.x), y_of(point.y), i % kColors);
    }
    if (path.empty()) continue;
    out += fmt::format(
        "<g class=\"series\" data-series=\"{}\" data-name=\"{}\" data-points=\"{}\">"
        "<path d=\"{}\" class=\"s{}{}\"/>{}</g>",
        i, escape_html(lines[i].name), values, path, i % kColors, lines[i].dots ? " faint" : "",
        dots);
  }
  out += fmt::format(
      "<rect class=\"pad\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
      "data-low=\"{:.9g}\" data-high=\"{:.9g}\" data-label=\"{}\"/>",
      kLeft, top, kPlotWidth, bottom - top, low_x, high_x, escape_html(chart.x_label));
  return out + "</svg>";
}

std::string draw_bars(const StackedBars& chart) {
  double high = 0;
  for (const auto& [name, values] : chart.rows) {
    double sum = 0;
    for (const double value : values) sum += value;
    high = std::max(high, sum);
  }
  if (!(high > 0) || !std::isfinite(high)) return {};
  const double top = 16 + legend_height(chart.parts);
  const double row_height = chart.rows.size() > 16 ? 12 : 26;
  const double bottom = top + row_height * static_cast<double>(chart.rows.size());
  std::string out = svg_begin(bottom + 40, chart.title, chart.description, "bars");
  out += legend(chart.parts, 14) + x_axis(0, high, bottom, top, chart.unit);
  for (std::size_t row = 0; row < chart.rows.size(); ++row) {
    const auto& [name, values] = chart.rows[row];
    const double y = top + row_height * static_cast<double>(row);
    if (row_height > 20 || row % 4 == 0)
      out += svg_text(kLeft - 8, y + row_height * 0.7, "t end", shown(name, 12));
    double x = kLeft;
    for (std::size_t part = 0; part < values.size(); ++part) {
      const double width = values[part] / high * kPlotWidth;
      if (width <= 0) continue;
      out += fmt::format(
          "<rect class=\"f{}\" data-series=\"{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" "
          "height=\"{:.1f}\"><title>{}</title></rect>",
          part % kColors, part, x, y + 2, width, row_height - 4,
          escape_html(fmt::format("{}, {}: {} {}", name, chart.parts.at(part),
                                  number_words(values[part]), chart.unit)));
      x += width;
    }
  }
  return out + "</svg>";
}

std::string draw_heat_map(const HeatMap& chart) {
  double low = INFINITY, high = -INFINITY;
  for (const auto& row : chart.values) {
    for (const double value : row) {
      if (!std::isfinite(value)) continue;
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  if (!std::isfinite(low) || chart.columns.empty()) return {};
  const double top = 8;
  const double row_height = std::clamp(240.0 / static_cast<double>(chart.rows.size()), 6.0, 22.0);
  const double bottom = top + row_height * static_cast<double>(chart.rows.size());
  const double width = kPlotWidth / static_cast<double>(chart.columns.size());
  std::string out = svg_begin(bottom + 40, chart.title, chart.description, "heat");
  for (std::size_t row = 0; row < chart.rows.size(); ++row) {
    const double y = top + row_height * static_cast<double>(row);
    if (row_height > 11 || row % 4 == 0)
      out += svg_text(kLeft - 8, y + row_height * 0.5 + 4, "t end", shown(chart.rows[row], 12));
    for (std::size_t column = 0; column < chart.columns.size(); ++column) {
      const double value = chart.values[row][column];
      if (!std::isfinite(value)) continue;
      const double shade = high > low ? (value - low) / (high - low) : 0;
      out += fmt::format(
          "<rect class=\"heat-cell\" fill-opacity=\"{:.2f}\" x=\"{:.2f}\" y=\"{:.1f}\" "
          "width=\"{:.2f}\" height=\"{:.1f}\"><title>{}</title></rect>",
          0.08 + 0.92 * shade, kLeft + width * static_cast<double>(column), y, width + 0.3,
          row_height - 1,
          escape_html(fmt::format("{}, {}: {} {}", chart.rows[row], chart.columns[column],
                                  number_words(value), chart.unit)));
    }
  }
  out += svg_text(kLeft, bottom + 16, "t", chart.columns.front());
  out += svg_text(kLeft + kPlotWidth, bottom + 16, "t end", chart.columns.back());
  out += svg_text(kLeft + kPlotWidth / 2, bottom + 32, "t mid dim",
                  fmt::format("weak colour: {} {}, strong: {} {}", number_words(low), chart.unit,
                              number_words(high), chart.unit));
  return out + "</svg>";
}

std::string draw_durations(const DurationChart& chart) {
  if (chart.rows.empty()) return {};
  double low = INFINITY, high = 0;
  for (const Durations& row : chart.rows) {
    low = std::min({low, row.from_s, row.quantiles_s.front()});
    high = std::max({high, row.to_s, row.quantiles_s.back()});
  }
  low = std::clamp(low, 1e-9, 1e9);
  high = std::max(high, low * 1.25);
  const double left = 230, width = kWidth - left - kRight;
  const double row_height = 36, top = 6;
  const double bottom = top + row_height * static_cast<double>(chart.rows.size());
  const double scale = width / std::log(high / low);
  const auto x_of = [&](double s) {
    return left + std::clamp(std::log(std::max(s, 1e-9) / low) * scale, 0.0, width);
  };
  std::string out = svg_begin(bottom + 40, chart.title, chart.description, "durations");
  for (double decade = std::pow(10, std::floor(std::log10(low))); decade <= high; decade *= 10) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      const double s = decade * digit;
      if (s < low || s > high || (digit > 1 && high / low > 100)) continue;
      out += fmt::format(
          "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" class=\"grid\"/>",
          x_of(s), top, bottom);
      out += svg_text(x_of(s), bottom + 16, "t mid",
                      s < 1e-6   ? fmt::format("{:.0f} ns", s * 1e9)
                      : s < 1e-3 ? fmt::format("{:.0f} us", s * 1e6)
                      : s < 1    ? fmt::format("{:.0f} ms", s * 1e3)
                                 : fmt::format("{:.0f} s", s));
    }
  }
  for (std::size_t i = 0; i < chart.rows.size(); ++i) {
    const Durations& row = chart.rows[i];
    const double y = top + row_height * static_cast<double>(i);
    const double base = y + row_height - 13;  // of the histogram; the box lies below
    out += svg_text(left - 8, base - 3, "t end", without_middle(shown(row.name, 200), 32));
    std::int64_t all = 0, max = 1;
    for (const std::int64_t count : row.counts) {
      all += count;
      max = std::max(max, count);
    }
    const auto parts = static_cast<double>(row.counts.size());
    const double step = parts > 0 ? std::log(row.to_s / row.from_s) / parts : 0;
    for (std::size_t part = 0; part < row.counts.size(); ++part) {
      if (row.counts[part] <= 0) continue;
      const double from = row.from_s * std::exp(step * static_cast<double>(part));
      const double to = row.from_s * std::exp(step * static_cast<double>(part + 1));
      const double height =
          std::max(1.0, 20 * static_cast<double>(row.counts[part]) / static_cast<double>(max));
      out += fmt::format(
          "<rect class=\"f4\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\">"
          "<title>{}</title></rect>",
          x_of(from), base - height, std::max(1.5, x_of(to) - x_of(from)), height,
          fmt::format("{} of {} took {} to {}", row.counts[part], all, time_words(from),
                      time_words(to)));
    }
    const auto& q = row.quantiles_s;
    const std::string words = escape_html(fmt::format(
        "{}: 5 % below {}, 25 % below {}, median {}, 75 % below {}, 95 % below {}", row.name,
        time_words(q[0]), time_words(q[1]), time_words(q[2]), time_words(q[3]), time_words(q[4])));
    const auto box = [&](const char* kind, double from, double to, double at, double height) {
      out += fmt::format(
          "<rect class=\"{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\">"
          "<title>{}</title></rect>",
          kind, from, at, std::max(1.0, to - from), height, words);
    };
    box("f7", x_of(q[0]), x_of(q[4]), base + 5, 1);
    box("f0", x_of(q[1]), x_of(q[3]), base + 2, 7);
    box("f5", x_of(q[2]) - 1, x_of(q[2]) + 1, base + 1, 9);
  }
  out += svg_text(left + width / 2, bottom + 32, "t mid dim", "duration, logarithmic");
  return out + "</svg>";
}

std::string draw_timeline(const Timeline& timeline) {
  std::int64_t end_ns = 0;
  std::vector<std::pair<int, std::string>> rows;
  std::map<std::string, std::size_t> lanes;
  for (const LaneEvent& event : timeline.events) {
    end_ns = std::max(end_ns, event.start_ns + event.duration_ns);
    if (rows.empty() || rows.back() != std::pair(event.rank, event.lane))
      rows.emplace_back(event.rank, event.lane);
    lanes.emplace(event.lane, 0);
  }
  if (end_ns <= 0) return {};
  // The colours of the split of a step; other lanes take those that it leaves.
  const std::map<std::string, std::size_t> known = {{"compute", 0}, {"copy_in", 1}, {"gather", 2},
                                                    {"reduce", 3},  {"receive", 4}, {"norm", 5}};
  std::size_t color = 6;
  for (auto& [lane, index] : lanes) {
    const auto found = known.find(lane);
    index = found == known.end() ? color++ : found->second;
  }
  const double left = 118;
  const double scale = (kWidth - left - kRight) / static_cast<double>(end_ns);
  const double row_height = rows.size() > 40 ? 10 : 20;
  const double top = 8;
  const double bottom = top + row_height * static_cast<double>(rows.size());
  std::string out =
      svg_begin(bottom + 40, fmt::format("Step {} by lane and rank", timeline.step),
                fmt::format("{} actions of {}; the script zooms with + and -, the arrows and 0",
                            timeline.events.size(), time_words(static_cast<double>(end_ns) * 1e-9)),
                "timeline");
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const double y = top + row_height * static_cast<double>(row);
    if (row_height > 12 || row % 4 == 0)
      out += svg_text(left - 8, y + row_height * 0.5 + 4, "t end",
                      shown(fmt::format("{} {}", rows[row].first, rows[row].second), 18));
  }
  // Its own viewport, which the script changes to zoom; horizontal sizes are in nanoseconds there.
  out += fmt::format(
      "<svg class=\"view\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
      "viewBox=\"0 0 {:.0f} {:.0f}\" preserveAspectRatio=\"none\" data-end=\"{}\">",
      left, top, kWidth - left - kRight, bottom - top, kWidth - left - kRight, bottom - top,
      end_ns);
  std::size_t row = 0;
  for (const LaneEvent& event : timeline.events) {
    while (rows[row] != std::pair(event.rank, event.lane)) ++row;
    out += fmt::format(
        "<rect class=\"f{}\" x=\"{:.3f}\" y=\"{:.1f}\" width=\"{:.3f}\" height=\"{:.1f}\">"
        "<title>{}</title></rect>",
        lanes[event.lane] % kColors, static_cast<double>(event.start_ns) * scale,
        row_height * static_cast<double>(row) + 2,
        std::max(0.2, static_cast<double>(event.duration_ns) * scale), row_height - 4,
        escape_html(fmt::format("rank {}, {}: {}", event.rank, event.name,
                                time_words(static_cast<double>(event.duration_ns) * 1e-9))));
  }
  out += "</svg>";
  out += svg_text(left, bottom + 16, "t range-low", "0");
  out += svg_text(kWidth - kRight, bottom + 16, "t end range-high",
                  time_words(static_cast<double>(end_ns) * 1e-9));
  out +=
      svg_text(left + (kWidth - left) / 2, bottom + 32, "t mid dim", "time since the step began");
  return out + "</svg>";
}

}  // namespace dstrain::report
