#pragma once

/// Operations of kernels that instructions bind, not memory, fitted with
/// Machine::vector_flops_per_s to the times of engine/kernels/benchmarks/conv.tsv.
namespace dstrain {

/// For a number of a depthwise convolution's input beside its taps: to fp32, norm, activation; in
/// backward the same again, and the gradients of activation and norm. So does what takes means of
/// what is normalised, and sums for the gradients of gates.
inline constexpr double kNormOperations = 12, kNormGradientOperations = 37;
/// For a number of the windows of an image: where it lies.
inline constexpr double kColumnOperations = 17;
/// For each operation of a depthwise convolution that cuDNN runs. Fitted to a step of ConvNeXt-tiny
/// on an H100, 64 images of 224 px, with windows of 7 x 7.
inline constexpr double kLibraryDepthwise = 2.6;
/// For a number of an image and each window that may have taken it, in max pooling's backward.
inline constexpr double kPoolOperations = 9;

}  // namespace dstrain
