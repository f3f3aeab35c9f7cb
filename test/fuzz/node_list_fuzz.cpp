#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "engine/recipe/text.h"
#include "launcher/hosts/host_list.h"

namespace {

using namespace dstrain;
using namespace dstrain::launcher;

constexpr std::size_t kLimit = 4096;

void require(bool condition) {
  if (!condition) std::abort();
}

void try_nodes(std::string_view text) {
  const std::vector<std::string> names = expand_node_list(text, kLimit);
  require(!names.empty() && names.size() <= kLimit);
  for (const std::string& name : names) {
    require(!name.empty() && name.size() <= 255 && name.front() != '-' &&
            name.find_first_of(",[]()") == std::string::npos && is_plain_text(name));
  }
  require(std::set<std::string>(names.begin(), names.end()).size() == names.size());
  // Whatever was compressed before, the plain list says the same.
  const std::string plain = fmt::format("{}", fmt::join(names, ","));
  if (plain.size() <= kHostfileLimit) require(expand_node_list(plain, kLimit) == names);
}

void try_counts(std::string_view text) {
  const std::vector<int> counts = expand_counts(text, kLimit);
  require(!counts.empty() && counts.size() <= kLimit);
  require(expand_counts(fmt::format("{}", fmt::join(counts, ",")), kLimit) == counts);
  std::string folded;
  for (std::size_t begin = 0; begin < counts.size();) {
    std::size_t end = begin;
    while (end < counts.size() && counts[end] == counts[begin]) ++end;
    folded += fmt::format("{}{}(x{})", folded.empty() ? "" : ",", counts[begin], end - begin);
    begin = end;
  }
  require(expand_counts(folded, kLimit) == counts);
}

/// A list that is known to be right, and its names by the simplest means: each group of four bytes
/// is one entry "p<group>-[lo-hi]x[lo-hi]".
void try_known(const std::uint8_t* data, std::size_t size) {
  std::string list;
  std::vector<std::string> expected;
  for (std::size_t group = 0; group + 4 <= size && expected.size() < 1000; group += 4) {
    const int low = data[group];
    const int high = low + data[group + 1] % 12;
    const int width = data[group + 2] % 6;
    const int last = data[group + 3] % 5;
    list += fmt::format("{}p{}-[{:0{}}-{}]x[0-{},007]", list.empty() ? "" : ",", group, low, width,
                        high, last);
    for (int i = low; i <= high; ++i) {
      for (int j = 0; j <= last; ++j) {
        expected.push_back(fmt::format("p{}-{:0{}}x{}", group, i, width, j));
      }
      expected.push_back(fmt::format("p{}-{:0{}}x007", group, i, width));
    }
  }
  if (!list.empty()) require(expand_node_list(list, kLimit) == expected);
}

}  // namespace

/// 'n' and a node list, 'c' and counts, or 'k' and the bytes of a list that is known to be right.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] == 'k') {
    try_known(data + 1, size - 1);
    return 0;
  }
  try {
    if (data[0] == 'n') try_nodes(text);
    if (data[0] == 'c') try_counts(text);
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::usage && is_plain_text(error.what()));
    require(std::string_view(error.what()).size() < 1024);
  }
  return 0;
}
