#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/kernels/nf4/nf4.h"
#include "engine/mesh/pieces.h"
#include "engine/weights/misfits.h"
#include "engine/weights/safetensors.h"
#include "engine/weights/weight_folder.h"

namespace dstrain {

/// A matrix that files of transformers have in bitsandbytes' NF4: codes under its own name, and
/// beside them NAME.absmax, NAME.quant_map, NAME.quant_state.bitsandbytes__nf4 and, where maxima
/// are codes, too, NAME.nested_absmax and NAME.nested_quant_map.
class FourBitTensor {
 public:
  /// Whether the tensor at `place` is coded in one of bitsandbytes' ways of 4 bits.
  [[nodiscard]] static bool is_one(const WeightFolder& folder, const WeightFolder::Place& place);
  /// Nothing where it is not as `part` needs it, which `misfits` then say.
  [[nodiscard]] static std::optional<FourBitTensor> open(const WeightFolder& folder,
                                                         const WeightFolder::Place& place,
                                                         const Piece& part, Misfits& misfits);

  /// Elements [begin, begin + out.size()) of the flattened tensor.
  void read(std::int64_t begin, std::span<float> out) const;
  [[nodiscard]] Nf4Tensor whole() const;
  /// Names of the tensors that it is made of.
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }

 private:
  /// Bytes of a tensor of `folder`.
  using Bytes = std::span<const std::byte>;
  [[nodiscard]] float maximum(std::int64_t block) const;

  Bytes codes_, maxima_, nested_;
  std::optional<float> offset_;  ///< none: maxima are fp32
  std::vector<std::string> names_;
};

}  // namespace dstrain
