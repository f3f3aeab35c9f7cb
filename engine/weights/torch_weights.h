#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "engine/weights/torch_zip.h"
#include "engine/weights/weight_file.h"

namespace dstrain {

/// Elements [begin, begin + out.size()) of a tensor of `zip`, in the order of its shape, as fp32.
/// The tensor is of a readable type and has them.
void read_tensor(const TorchZip& zip, const PickleTensor& tensor, std::int64_t begin,
                 std::span<float> out);

/// A state_dict that torch.save wrote (pytorch_model.bin, .pth): a dict of tensors, or one under
/// the key state_dict, model or module. Error{data} as TorchZip, and where no tensor is there.
class TorchWeights final : public WeightFile {
 public:
  explicit TorchWeights(const std::filesystem::path& path);

 private:
  void read_values(const std::string& name, const Entry& entry, std::int64_t begin,
                   std::span<float> out) const override;

  TorchZip zip_;
  std::map<std::string, const PickleTensor*> tensors_;
};

}  // namespace dstrain
