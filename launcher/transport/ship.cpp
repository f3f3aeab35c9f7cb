#include "launcher/transport/ship.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/module.h"
#include "launcher/base/words.h"
#include "launcher/hosts/placement.h"

namespace dstrain::launcher {
namespace {

namespace fs = std::filesystem;

std::string quote_all(const std::vector<std::string>& words) {
  std::vector<std::string> quoted;
  for (const std::string& word : words) quoted.push_back(shell_quote(word));
  return fmt::format("{}", fmt::join(quoted, " "));
}

/// Files of a folder of the tree, in order of their names.
void add_files(ShipTree& tree, const fs::path& folder, std::string_view prefix,
               std::string_view part) {
  std::error_code none;
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(tree.root / folder, none)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && name.find(part) != std::string::npos && entry.is_regular_file())
      found.push_back((folder / name).string());
  }
  std::sort(found.begin(), found.end());
  tree.names.insert(tree.names.end(), found.begin(), found.end());
}

/// Shell function `tree_hash FOLDER`; the same text runs here and there. sha256sum is found on
/// every Linux, which no library of ours is.
std::string hash_function(const ShipTree& tree) {
  return fmt::format(
      "tree_hash() {{ (cd \"$1\" && find -L {} -type f -exec sha256sum {{}} + | LC_ALL=C sort | "
      "sha256sum | cut -c1-64) 2>/dev/null; }}; ",
      quote_all(tree.names));
}

constexpr const char* kFolder = "d=${XDG_CACHE_HOME:-$HOME/.cache}/dstrain/ship; ";

/// The login shell may be any; what it sees is one quoted word.
std::string in_posix_shell(const std::string& script) {
  return "exec sh -c " + shell_quote(script);
}

}  // namespace

ShipTree ship_tree(const fs::path& program) {
  const fs::path file = fs::weakly_canonical(program);
  if (!fs::is_regular_file(file))
    throw Error(ErrorKind::usage, fmt::format("{}: not a file, cannot be copied", file.string()));
  const fs::path prefix = file.parent_path().parent_path();
  const fs::path modules = fs::relative(tree_of(file), prefix) / "lib" / "dstrain";
  if (!fs::is_directory(prefix / modules)) {
    ShipTree tree{file.parent_path(), {file.filename().string()}, file.filename().string()};
    add_files(tree, "", "libdstrain_", ".so");
    return tree;
  }
  // By name, since the folder may be one like /usr/local.
  const std::string entry = (file.parent_path().filename() / file.filename()).string();
  ShipTree tree{prefix, {entry}, entry};
  add_files(tree, modules.lexically_normal(), "", "");
  return tree;
}

std::string ship_hash_command(const ShipTree& tree) {
  return hash_function(tree) + "tree_hash " + shell_quote(tree.root.string());
}

std::vector<std::string> ship_pack_command(const ShipTree& tree) {
  std::vector<std::string> words = {"tar", "-c", "-h", "-f", "-", "-C", tree.root.string(), "--"};
  words.insert(words.end(), tree.names.begin(), tree.names.end());
  return words;
}

std::string ship_unpack_command(const ShipTree& tree, const std::string& hash) {
  // A copy that another job has put there meanwhile is the same one.
  return in_posix_shell(fmt::format(
      "{}{}set -e; umask 077; mkdir -p \"$d\"; t=$(mktemp -d \"$d/{}.tmp-XXXXXX\"); "
      "trap 'rm -rf \"$t\"' EXIT; trap 'exit 74' HUP INT TERM; tar -x -o -f - -C \"$t\" || "
      "{{ set -- $(df -Pk \"$d\" | tail -n 1); echo \"$4 KiB are free in $d\" >&2; exit 74; }}; "
      "[ \"$(tree_hash \"$t\")\" = {} ] || {{ echo 'what arrived is not what was sent' >&2; exit "
      "74; }}; "
      "mv -T \"$t\" \"$d/{}\" 2>/dev/null || [ -x \"$d/{}/\"{} ]",
      hash_function(tree), kFolder, hash, hash, hash, hash, shell_quote(tree.entry)));
}

std::string ship_forward_command(const ShipTree& tree, const std::string& hash,
                                 std::vector<std::string> ssh_words) {
  ssh_words.push_back(ship_unpack_command(tree, hash));
  return in_posix_shell(fmt::format("{}tar -c -h -f - -C \"$d/{}\" -- {} | {}", kFolder, hash,
                                    quote_all(tree.names), quote_all(ssh_words)));
}

std::string ship_agent_command(const ShipTree& tree, const std::string& hash,
                               const std::vector<std::string>& words,
                               const std::vector<std::string>& arguments) {
  const std::string root = shell_quote(tree.root.string());
  const std::string entry = shell_quote(tree.entry);
  return in_posix_shell(fmt::format(
      "{0}{1}d=$d/{2}; if [ -x {3}/{4} ] && [ \"$(tree_hash {3})\" = {2} ]; then d={3}; fi; "
      "[ -x \"$d/\"{4} ] || {{ echo \"$d is not there\" >&2; exit 127; }}; exec {5} \"$d/\"{4} {6}",
      hash_function(tree), kFolder, hash, root, entry, quote_all(words), quote_all(arguments)));
}

}  // namespace dstrain::launcher
