#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/hub/archive.h"
#include "engine/hub/http_head.h"
#include "engine/hub/repository.h"
#include "engine/hub/url.h"

namespace {

using namespace dstrain;
using namespace dstrain::hub;

void require(bool condition) {
  if (!condition) std::abort();
}

bool has_control(std::string_view text) {
  return std::ranges::any_of(text,
                             [](unsigned char c) { return (c < ' ' && c != '\t') || c == 0x7f; });
}

void try_head(std::string_view text) {
  const HttpHead head = parse_http_head(text, "fuzz");
  require(head.status >= 100 && head.status <= 599 && head.headers.size() <= 200);
  for (const auto& [name, value] : head.headers)
    require(!name.empty() && name.find(' ') == std::string::npos && !has_control(value));
  if (const auto length = head.content_length()) require(*length >= 0);
  (void)head.is_chunked();
  if (const auto range = parse_content_range(head.find("content-range").value_or("")))
    require(range->first >= 0 && range->first <= range->last);
  if (const auto chunk = parse_chunk_size(head.find("x-chunk").value_or(""))) require(*chunk >= 0);
  (void)next_link(head.find("link").value_or(""));
}

void try_tree(std::string_view text) {
  for (const HubFile& file : parse_tree(text, "fuzz")) {
    require(is_safe_path(file.path) && file.size >= 0);
    require(is_hex(file.digest, file.hash == Hash::sha256 ? 64 : 40));
  }
}

void try_tar(std::string_view text) {
  const auto entry = parse_tar_header(text, "fuzz");
  if (!entry) return;
  require(entry->size >= 0);
  require(is_safe_path(entry->path) || (entry->folder && entry->path.empty()));
}

/// A token goes to the origin of the first address alone, so an address must read as it is written.
void try_url(std::string_view text) {
  const Url from = parse_url("https://hub.example/a/b", "fuzz");
  const Url url = resolve_location(from, text);
  require(!has_control(url.text()) && url.text().find(' ') == std::string::npos);
  require(!url.host.empty() && url.host.find('@') == std::string::npos);
  const Url again = parse_url(url.text(), "fuzz");
  require(again.origin() == url.origin() && again.target == url.target);
}

void try_name(std::string_view text) {
  const auto name = parse_hub_name(text);
  if (!name) return;
  require(name->id.find("..") == std::string::npos && is_safe_path(name->id));
  require(name->revision.empty() || is_safe_path(name->revision));
  require(name->file.empty() || is_safe_path(name->file));
}

}  // namespace

/// 'h' and the head of an answer, 't' and a list of files, 'a' and a header of tar, 'u' and an
/// address, 'n' and a name of the Hub.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (data[0] == 'h') try_head(text);
    if (data[0] == 't') try_tree(text);
    if (data[0] == 'a') try_tar(text);
    if (data[0] == 'u') try_url(text);
    if (data[0] == 'n') try_name(text);
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::data || error.kind() == ErrorKind::usage);
    require(std::string(error.what()).size() < 4096);
  }
  return 0;
}
