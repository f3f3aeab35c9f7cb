#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/kernels/dtype.h"

/// Losses: arguments, the GPU version and the reference. The rules are in engine/kernels/kernels.h.
namespace dstrain::kernels {

/// Cross entropy over many classes, in place: each row of logits becomes its gradient, grad_loss *
/// weight * (softmax - one-hot). A row of weight 0 is not read and becomes zeros; a label outside
/// [0, classes) gives a nan loss.
struct VocabLoss {
  void* logits;                ///< [rows, stride]; elements from `classes` on are left alone
  const std::int64_t* labels;  ///< [rows]
  const float* weights;        ///< [rows]
  const float* grad_loss;      ///< [1]; null: logits stay as they are
  float* loss;                 ///< [rows], weighted
  float* top1;  ///< [rows]: weight where no class scores higher, ties to the lower index
  std::int64_t rows, classes;
  std::int64_t stride;  ///< multiple of 8, at least classes
  DType dtype;
};

/// What a part of the classes adds to the cross entropy of a row: [largest logit, sum of
/// exp(logit - largest), the label's logit or 0 where another part has it, class of the largest,
/// the lowest of equals].
struct VocabPart {
  const void* logits;          ///< [rows, stride]
  const std::int64_t* labels;  ///< [rows], of all classes
  float* found;                ///< [rows, 4]
  std::int64_t rows, classes;
  std::int64_t stride;       ///< multiple of 8, at least classes
  std::int64_t first_class;  ///< of the part
  DType dtype;
};

/// As VocabLoss, for one of several parts of the classes, of which `found` tells [parts, rows, 4].
struct VocabPartLoss {
  void* logits;  ///< [rows, stride] of this part
  const std::int64_t* labels;
  const float* weights;
  const float* grad_loss;  ///< [1]; null: logits stay as they are
  const float* found;
  float* loss;  ///< [rows], weighted
  float* top1;
  std::int64_t rows, classes, stride, first_class;
  std::int64_t all_classes;
  int parts;
  DType dtype;
};

/// totals [4] += sum of loss, sum of top1, 0, sum of weights; loss_sum = the first.
struct VocabTotals {
  const float* loss;     ///< [rows]
  const float* top1;     ///< [rows]
  const float* weights;  ///< [rows]
  float* loss_sum;       ///< [1]; null: not wanted
  float* totals;
  std::int64_t rows;
};

/// Blocks that share a row of logits: more where rows are few.
[[nodiscard]] int likely_class_parts(std::int64_t rows, std::int64_t classes);
/// What each of them tells: largest logit, sum of exponentials, class.
inline constexpr int kLikelyClassColumns = 3;

/// The class that scores highest in a row, the lower one of equals, and the logarithm of its
/// probability, which a nan makes nan. No alignment needed.
struct LikelyClass {
  const void* logits;  ///< [rows, classes]
  std::int64_t* best;  ///< [rows]
  float* logarithm;    ///< [rows]
  float* scratch;      ///< [rows, parts, kLikelyClassColumns]; null where parts is 1
  std::int64_t rows, classes;
  int parts;  ///< as likely_class_parts() says
  DType dtype;
};

/// Weighted cross entropy with label smoothing. Szegedy et al. 2016, arXiv:1512.00567, sec. 7. A
/// row of weight 0 is not read; a label outside [0, classes) gives a nan loss. No alignment needed.
struct CrossEntropy {
  const void* logits;          ///< [batch, classes]
  const std::int64_t* labels;  ///< [batch]
  const float* weights;        ///< [batch]
  float* log_sum_exp;          ///< [batch], kept for backward
  float* rows;                 ///< scratch, [4, batch]
  float* loss;                 ///< [1]
  float* totals;               ///< [4] += loss, top-1, top-5, samples
  std::int64_t batch, classes;
  float smoothing;
  DType dtype;
  const std::int64_t* second_labels = nullptr;  ///< [batch]; null: a row has one label
  const float* shares = nullptr;  ///< [batch], of the first label; the second has the rest
};

/// grad_logits = grad_loss * weight * (softmax - smoothed target).
struct CrossEntropyBackward {
  const void* logits;
  const std::int64_t* labels;
  const float* weights;
  const float* log_sum_exp;
  const float* grad_loss;  ///< [1]
  void* grad_logits;
  std::int64_t batch, classes;
  float smoothing;
  DType dtype;
  const std::int64_t* second_labels = nullptr;
  const float* shares = nullptr;
};

namespace cuda {
void vocab_loss(const VocabLoss& args, cudaStream_t stream);
void vocab_part(const VocabPart& args, cudaStream_t stream);
void vocab_part_loss(const VocabPartLoss& args, cudaStream_t stream);
void vocab_totals(const VocabTotals& args, cudaStream_t stream);
void likely_class(const LikelyClass& args, cudaStream_t stream);
void cross_entropy(const CrossEntropy& args, cudaStream_t stream);
void cross_entropy_backward(const CrossEntropyBackward& args, cudaStream_t stream);
}  // namespace cuda

namespace reference {
void vocab_part(const VocabPart& args);
void vocab_part_loss(const VocabPartLoss& args);
}  // namespace reference

}  // namespace dstrain::kernels
