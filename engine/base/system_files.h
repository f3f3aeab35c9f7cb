#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain {

/// Where the kernel shows itself; tests give trees of their own.
struct SystemRoots {
  std::filesystem::path sys = "/sys";
  std::filesystem::path proc = "/proc";
  std::filesystem::path dev = "/dev";
};

/// `text` without surrounding blanks and line ends.
[[nodiscard]] std::string_view trim(std::string_view text);
/// A file of /proc or /sys, which has no size before it is read; empty when there is none.
[[nodiscard]] std::string read_system_file(const std::filesystem::path& path);
/// First line of a file without surrounding blanks; empty when there is none.
[[nodiscard]] std::string read_first_line(const std::filesystem::path& path);
/// Value of the first line "name: value"; empty without it.
[[nodiscard]] std::string read_field(const std::filesystem::path& path, std::string_view name);
/// Fields of /proc/PID/stat behind the name, which may hold blanks and brackets: number
/// kFirstProcessField, the state, and those after it (proc(5)). `process` is a number or "self";
/// none where there is no such process.
inline constexpr std::size_t kFirstProcessField = 3;
[[nodiscard]] std::vector<std::string> read_process_fields(const std::string& process);
/// A whole number, or `fallback` for anything else.
[[nodiscard]] long long to_number(std::string_view text, long long fallback);
/// Names in a folder, sorted; none when it cannot be read.
[[nodiscard]] std::vector<std::string> list_names(const std::filesystem::path& folder);

/// The kernel's list format, "0-3,8,10-11" -> {0, 1, 2, 3, 8, 10, 11}, sorted; what is not of that
/// format is left out.
[[nodiscard]] std::vector<int> parse_cpu_list(std::string_view text);
/// The reverse.
[[nodiscard]] std::string format_cpu_list(const std::vector<int>& cpus);

}  // namespace dstrain
