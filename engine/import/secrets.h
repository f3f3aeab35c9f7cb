#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dstrain::importing {

/// `text` of another program's file or command line as it may be shown: where a secret begins, the
/// rest is "(not shown)". A secret is what follows the name of one (NAME=..., --name ..., NAME:
/// ...; is_secret_name), the password in a URL, and what `wandb login` and the like are given.
[[nodiscard]] std::string without_secrets(std::string_view text);

/// Takes the secrets out of the words of a launch: of "--env NAME=VALUE" and of
/// "--sbatch=--export=NAME=VALUE,..." the name stays, another option goes. Returns a sentence for
/// each, which says what to do.
[[nodiscard]] std::vector<std::string> strike_secrets(std::vector<std::string>& words);

}  // namespace dstrain::importing
