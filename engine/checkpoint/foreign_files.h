#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/checkpoint/foreign_checkpoint.h"
#include "engine/weights/torch_zip.h"

namespace dstrain {

namespace fs = std::filesystem;

/// What the openers of layouts share: values of pickles that must be there and of one kind.

using TorchFile = std::shared_ptr<const TorchZip>;
/// Error{data} also where the file holds what was written as another one of its folder: torch.save
/// puts the file's name into it.
[[nodiscard]] TorchFile open_torch(const std::filesystem::path& path);

/// Follows keys of dicts; Error{data} names the file and the key that is not there.
[[nodiscard]] const PickleValue& member(const fs::path& file, const PickleValue& value,
                                        std::string_view key);
/// The same, which may be missing or None: null.
[[nodiscard]] const PickleValue* optional_member(const PickleValue& value, std::string_view key);
[[nodiscard]] const PickleValue& member_of(const fs::path& file, const PickleValue& value,
                                           std::string_view key, PickleValue::Kind kind);
[[nodiscard]] std::int64_t integer_member(const fs::path& file, const PickleValue& value,
                                          std::string_view key);
/// A number, or a tensor of one.
[[nodiscard]] std::int64_t count_of(const TorchFile& file, const PickleValue& value,
                                    const std::string& what);
[[nodiscard]] ForeignTensor tensor_of(const TorchFile& file, const PickleValue& value,
                                      const std::string& what);
/// Sizes of a torch.Size, a tuple or a list.
[[nodiscard]] std::vector<std::int64_t> shape_of(const fs::path& file, const PickleValue& value,
                                                 const std::string& name);
/// Key and value of each item of a dict whose keys are texts.
[[nodiscard]] std::vector<std::pair<std::string, const PickleValue*>> items_of(
    const fs::path& file, const PickleValue& dict, const std::string& what);

/// Tensors of a dict by name; others are left out.
[[nodiscard]] ForeignCheckpoint::Tensors tensors_of(const TorchFile& file, const PickleValue& dict);

/// One group of torch.optim's param_groups.
[[nodiscard]] ForeignRule rule_of(const PickleValue& group);

/// "momentum_buffer" and the like: states of an optimizer that are as large as the tensor.
/// Error{usage} where one is there that no rule of dstrain has.
[[nodiscard]] bool is_moment(const std::string& state, const fs::path& file);

/// The same number in all files of a checkpoint.
class AgreedCount {
 public:
  explicit AgreedCount(std::string what) : what_(std::move(what)) {}
  /// Error{data} naming both files when they differ.
  void add(std::int64_t count, const fs::path& file);
  [[nodiscard]] std::optional<std::int64_t> value() const { return value_; }

 private:
  std::string what_;
  std::optional<std::int64_t> value_;
  fs::path file_;
};

/// Tensors of a model in its order, and the shapes of an optimizer's groups, in which tensors keep
/// that order: names of each group, where shapes leave one way only. Error{usage} otherwise.
struct OrderedShape {
  std::string name;
  std::vector<std::int64_t> shape;
};
[[nodiscard]] std::vector<std::vector<std::string>> names_of_groups(
    const std::vector<OrderedShape>& order,
    const std::vector<std::vector<std::vector<std::int64_t>>>& groups, const fs::path& file);

// The layouts. Each opens a folder that is known to be of that kind.
[[nodiscard]] ForeignCheckpoint open_zero(const std::filesystem::path& folder,
                                          const ForeignHints& hints);
[[nodiscard]] ForeignCheckpoint open_universal(const std::filesystem::path& folder);
[[nodiscard]] ForeignCheckpoint open_dcp(const fs::path& folder, const ForeignHints& hints);
[[nodiscard]] ForeignCheckpoint open_fsdp_full(const fs::path& folder, const ForeignHints& hints);
[[nodiscard]] ForeignCheckpoint open_trainer(const std::filesystem::path& folder,
                                             const ForeignHints& hints);
/// What DeepSpeed's model file says beside tensors.
void read_deepspeed_facts(const TorchFile& model, ForeignCheckpoint& into);
/// Loss scale and its steps, from an optimizer's state or its scaler.
void read_loss_scale(const PickleValue& state, ForeignCheckpoint& into);
/// The same from a file with the state of torch.amp.GradScaler, if it is there.
void read_scaler(const fs::path& path, ForeignCheckpoint& into);
/// Steps done by the trainer_state.json of `folder`; nullopt without that file, or without a count
/// in it.
[[nodiscard]] std::optional<std::int64_t> trainer_step(const std::filesystem::path& folder);

}  // namespace dstrain
