#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/hub/digest.h"
#include "engine/hub/url.h"

namespace dstrain::hub {

/// A name of the Hub: "hf://ORG/NAME[@REVISION][/FILE]", "hf://datasets/ORG/NAME...".
struct HubName {
  bool dataset = false;
  std::string id;        ///< "ORG/NAME"
  std::string revision;  ///< branch, tag or commit; empty: main
  std::string file;      ///< path in it; empty: what `Use` says

  [[nodiscard]] std::string text() const;  ///< as it is read
  /// "https://huggingface.co/ORG/NAME", where people look.
  [[nodiscard]] std::string page(const Url& endpoint) const;
};

/// The name that `text` is; nothing for text without hf://. Error{usage} names what is wrong in it.
[[nodiscard]] std::optional<HubName> parse_hub_name(std::string_view text);
/// Whether `text` has the form ORG/NAME[@REVISION], which a path may have, too.
[[nodiscard]] bool is_bare_name(std::string_view text);

/// What a repository is fetched for, which says which of its files.
enum class Use {
  config,     ///< of a model: config.json alone
  weights,    ///< of a model: config.json, weights, tokenizer, preparation of images
  tokenizer,  ///< of a model
  adapter,    ///< of PEFT
  data        ///< JSON, JSON Lines and parquet
};

struct HubFile {
  std::string path;
  std::int64_t size = 0;
  Hash hash = Hash::sha1;
  std::string digest;  ///< SHA-256 of its content, or git's SHA-1: the name of its blob
};

/// Whether a path of a repository may become one of this machine: relative, without "..", empty
/// parts and control characters, parts of at most 255 bytes.
[[nodiscard]] bool is_safe_path(std::string_view path);
[[nodiscard]] bool is_hex(std::string_view text, std::size_t digits);

/// The commit that an answer of api/models/ID/revision/REVISION holds. Error{data}.
[[nodiscard]] std::string parse_commit(std::string_view json, const std::string& name);
/// Files of a page of api/models/ID/tree/COMMIT. Error{data} for one with a path, a size or a
/// digest that none can have.
[[nodiscard]] std::vector<HubFile> parse_tree(std::string_view json, const std::string& name);

/// Those of `files` that `use` wants, and the one that `name` names. Error{data} where there are
/// none, with those that are there.
[[nodiscard]] std::vector<HubFile> wanted_files(const std::vector<HubFile>& files,
                                                const HubName& name, Use use);

/// The Hub's answers. Error{usage} for a repository that is not there or wants a licence.
class Repository {
 public:
  Repository(HubName name, Url endpoint, std::string token);

  /// One request, none for a revision that is a commit.
  [[nodiscard]] std::string commit(int tries) const;
  [[nodiscard]] std::vector<HubFile> files(const std::string& commit) const;
  [[nodiscard]] Url file_url(const std::string& commit, const std::string& path) const;
  /// What a status of 400 and above means for this repository.
  [[noreturn]] void refuse(int status, const std::string& what) const;

 private:
  [[nodiscard]] std::string api() const;

  HubName name_;
  Url endpoint_;
  std::string token_;
};

}  // namespace dstrain::hub
