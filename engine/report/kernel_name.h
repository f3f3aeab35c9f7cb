#pragma once

#include <string>
#include <string_view>

namespace dstrain::report {

/// The name of a kernel as people call it: without the type that it returns, namespaces and
/// parameters, which a demangled name has all of. "void at::native::f<4, at::native::g>(int, long)"
/// is "f<4, g>". Names of copies and of what is no C++ stay.
[[nodiscard]] std::string kernel_words(std::string_view name);

/// At most `characters` (10 or more), with "..." for the middle of a longer text.
[[nodiscard]] std::string without_middle(const std::string& text, std::size_t characters);

}  // namespace dstrain::report
