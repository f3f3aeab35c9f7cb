#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace dstrain::launcher {

/// Our own program and the files that it needs beside it, as `--ship` copies them to hosts, into
/// ~/.cache/dstrain/ship/HASH. HASH is that of every file's name and content, so a copy that is
/// there is the right version; it is safe to delete old ones.
struct ShipTree {
  std::filesystem::path root;
  std::vector<std::string> names;  ///< files and folders below root
  std::string entry;               ///< program to start, below root
};

/// The program and lib/dstrain of its tree (module.h), else the program with the libdstrain_*.so
/// beside it. Error{usage} when it is not there.
[[nodiscard]] ShipTree ship_tree(const std::filesystem::path& program);

/// Command of this machine's sh that prints the tree's hash, 64 hexadecimal digits.
[[nodiscard]] std::string ship_hash_command(const ShipTree& tree);
/// Command of this machine that writes the tree to its standard output as a tar stream.
[[nodiscard]] std::vector<std::string> ship_pack_command(const ShipTree& tree);
/// Remote command: unpacks such a stream from its standard input, checks the hash and puts the tree
/// into its place, whole or not at all.
[[nodiscard]] std::string ship_unpack_command(const ShipTree& tree, const std::string& hash);
/// Remote command for a host that has the copy: sends it to another host by `ssh_words`, an ssh
/// command line up to and including the host's name.
[[nodiscard]] std::string ship_forward_command(const ShipTree& tree, const std::string& hash,
                                               std::vector<std::string> ssh_words);
/// Remote command: `words` (what stands before the program, e.g. `env NAME=VALUE`), the program
/// from tree.root when the host has the same tree there, else from the copy, and its arguments.
/// Exit code 127 when the host has neither.
[[nodiscard]] std::string ship_agent_command(const ShipTree& tree, const std::string& hash,
                                             const std::vector<std::string>& words,
                                             const std::vector<std::string>& arguments);

}  // namespace dstrain::launcher
