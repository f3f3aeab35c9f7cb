#include "engine/checkpoint/foreign_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/printable.h"
#include "engine/checkpoint/foreign_files.h"

namespace dstrain {
namespace {

/// The checkpoint that a file `latest` names; `folder` itself where there is none.
fs::path follow_latest(const fs::path& folder) {
  for (const char* name : {"latest", "latest_universal"}) {
    if (!path_exists(folder / name)) continue;
    constexpr std::uint64_t kMaxTag = 4096;
    std::string tag = read_file(folder / name, kMaxTag);
    while (!tag.empty() && (tag.back() == '\n' || tag.back() == ' ')) tag.pop_back();
    if (tag.empty() || tag == "." || tag == ".." || fs::path(tag).filename() != tag) {
      throw Error(ErrorKind::data, fmt::format("{} names '{}', which is no folder beside it",
                                               (folder / name).string(), shown(tag)));
    }
    if (path_kind(folder / tag) != PathKind::folder) {
      throw Error(ErrorKind::data,
                  fmt::format("{} names {}, which is not there", (folder / name).string(),
                              (folder / tag).string()),
                  "copy that folder too, or give the folder of another step");
    }
    return folder / tag;
  }
  return folder;
}

bool any_file(const fs::path& folder, auto matches) {
  return std::ranges::any_of(fs::directory_iterator(folder), [&](const fs::directory_entry& entry) {
    return matches(entry.path().filename().string());
  });
}

}  // namespace

ForeignCheckpoint open_foreign(const fs::path& path, const ForeignHints& hints) {
  if (path_kind(path, ErrorKind::usage) != PathKind::folder) {
    throw Error(ErrorKind::usage, fmt::format("{} is no folder", path.string()),
                "give the folder of a checkpoint; `dstrain checkpoint inspect` shows single files");
  }
  const fs::path folder = follow_latest(path);
  if (path_kind(folder / "zero") == PathKind::folder) return open_universal(folder);
  if (any_file(folder, [](const std::string& name) {
        return name.ends_with("_model_states.pt") || name.ends_with("_optim_states.pt");
      })) {
    return open_zero(folder, hints);
  }
  if (path_exists(folder / ".metadata") || path_exists(folder / "pytorch_model_fsdp_0"))
    return open_dcp(folder, hints);
  if (any_file(folder, [](const std::string& name) {
        return name.starts_with("pytorch_model_fsdp_rank") ||
               name.starts_with("pytorch_model_rank");
      })) {
    throw Error(ErrorKind::usage,
                fmt::format("{} is a LOCAL_STATE_DICT of FSDP1, which does not say how tensors "
                            "are cut",
                            folder.string()),
                "load it with the same program and save it with SHARDED_STATE_DICT or "
                "FULL_STATE_DICT");
  }
  if (path_exists(folder / "pytorch_model_fsdp.bin")) return open_fsdp_full(folder, hints);
  for (const char* name : {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                           "pytorch_model.bin.index.json", "optimizer.pt"}) {
    if (path_exists(folder / name)) return open_trainer(folder, hints);
  }
  const bool above = any_file(folder, [](const std::string& name) {
    return name.starts_with("checkpoint-") || name.starts_with("global_step") ||
           name.starts_with("epoch_");
  });
  throw Error(
      ErrorKind::usage,
      fmt::format("{} holds no checkpoint of DeepSpeed, FSDP or transformers", folder.string()),
      above ? "give the folder of one step in it" : "");
}

}  // namespace dstrain
