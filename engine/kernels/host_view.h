#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/TypeCast.h>

#include <cstdint>

#include "engine/kernels/dtype.h"

namespace dstrain::kernels {

/// Elements of any dtype on the host, read and written as double. One rounding at a write (by way
/// of fp32).
class View {
 public:
  View(const void* data, DType dtype) : data_(const_cast<void*>(data)), dtype_(dtype) {}

  [[nodiscard]] double at(std::int64_t i) const {
    switch (dtype_) {
      case DType::f32:
        return static_cast<const float*>(data_)[i];
      case DType::bf16:
        return static_cast<float>(static_cast<const c10::BFloat16*>(data_)[i]);
      case DType::f16:
        return static_cast<float>(static_cast<const c10::Half*>(data_)[i]);
    }
    return 0;
  }
  void set(std::int64_t i, double value) const {
    const float rounded = static_cast<float>(value);
    switch (dtype_) {
      case DType::f32:
        static_cast<float*>(data_)[i] = rounded;
        return;
      case DType::bf16:
        static_cast<c10::BFloat16*>(data_)[i] = static_cast<c10::BFloat16>(rounded);
        return;
      case DType::f16:
        static_cast<c10::Half*>(data_)[i] = c10::convert<c10::Half>(rounded);
        return;
    }
  }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  void* data_;
  DType dtype_;
};

/// x as a tensor of `dtype` holds it.
inline double stored(double x, DType dtype) {
  double word = 0;  // room for any type
  const View view(&word, dtype);
  view.set(0, x);
  return view.at(0);
}

inline void add_to(float& out, double value) {
  out = static_cast<float>(static_cast<double>(out) + value);
}

}  // namespace dstrain::kernels
