#pragma once

#include <string_view>

namespace dstrain::report {

/// Style and script of a page, without the tags around them. The script adds what a page can do
/// without: values at the pointer, lines that hide, the zoom of a timeline.
[[nodiscard]] std::string_view page_style();
[[nodiscard]] std::string_view page_script();

}  // namespace dstrain::report
