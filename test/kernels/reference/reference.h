#pragma once

#include "engine/kernels/activation/kernels.h"
#include "engine/kernels/attention/kernels.h"
#include "engine/kernels/batch_norm/kernels.h"
#include "engine/kernels/conv/columns_kernel.h"
#include "engine/kernels/conv/direct_kernel.h"
#include "engine/kernels/conv/kernels.h"
#include "engine/kernels/conv/relu_kernel.h"
#include "engine/kernels/embedding/kernels.h"
#include "engine/kernels/experts/kernels.h"
#include "engine/kernels/linear/kernels.h"
#include "engine/kernels/loss/kernels.h"
#include "engine/kernels/norm/kernels.h"
#include "engine/kernels/optimizer/kernels.h"
#include "engine/kernels/optimizer/optimizer_update.h"
#include "engine/kernels/pool/kernels.h"
#include "engine/kernels/pool/norm_pool_kernel.h"
#include "engine/kernels/recurrent/kernels.h"
#include "engine/kernels/wire/kernels.h"

/// What kernels mean: the same arguments with host pointers, computed as the definitions read, in
/// double. Those that a CPU runs in production (draw, dropout, heads of a cache, ..) lie beside the
/// kernels.
namespace dstrain::kernels::reference {

void bias_gelu(const BiasGelu& args);
void bias_gelu_backward(const BiasGeluBackward& args);
void column_scale(const ColumnScale& args);
void column_scale_backward(const ColumnScaleBackward& args);
void column_sum(const ColumnSum& args);
void partial_sums(const PartialSums& args);
void swiglu(const Swiglu& args);
void swiglu_backward(const SwigluBackward& args);
void swiglu_codes(const SwigluCodes& args);

void cached_attention(const CachedAttention& args);
void rotate_heads(const RotateHeads& args);
void pack_heads(const PackHeads& args);

void batch_norm_sums(const BatchNormSums& args);
void batch_norm_move_sums(const BatchNormMoveSums& args);
void batch_norm_add_sums(const BatchNormAddSums& args);
void batch_norm_finish(const BatchNormFinish& args);
void batch_norm_fold(const BatchNormFold& args);
void batch_norm_apply(const BatchNormApply& args);
void batch_norm_backward_sums(const BatchNormBackwardSums& args);
void batch_norm_backward_finish(const BatchNormBackwardFinish& args);
void batch_norm_backward_apply(const BatchNormBackwardApply& args);
void squeeze(const Squeeze& args);
void gate_backward_sums(const GateBackwardSums& args);
void gate_backward_combine(const GateBackwardCombine& args);
void spread_mean(const SpreadMean& args);

void image_columns(const ImageColumns& args);

void direct_conv(const DirectConv& args);
void direct_conv_backward(const DirectConvBackward& args);

void depthwise(const Depthwise& args);
void depthwise_backward(const DepthwiseBackward& args);

void bias_relu_backward(const BiasReluBackward& args);

void patchify(const Patchify& args);
void embed_sequence(const EmbedSequence& args);
void embed_sequence_backward(const EmbedSequenceBackward& args);
void embed_tokens(const EmbedTokens& args);
void embed_tokens_backward(const EmbedTokensBackward& args);

void route(const Route& args);
void expert_sums(const ExpertSums& args);
void expert_shares(const ExpertShares& args);
void route_backward(const RouteBackward& args);
void sort_by_expert(const SortByExpert& args);
void spread_rows(const SpreadRows& args);
void combine_rows(const CombineRows& args);
void combine_rows_backward(const CombineRowsBackward& args);

void few_rows(const FewRows& args);
void abs_max(const AbsMax& args);
void quantize(const Quantize& args);

void vocab_loss(const VocabLoss& args);
void vocab_totals(const VocabTotals& args);
void likely_class(const LikelyClass& args);
void cross_entropy(const CrossEntropy& args);
void cross_entropy_backward(const CrossEntropyBackward& args);

void add_layer_norm(const AddLayerNorm& args);
void add_layer_norm_backward(const AddLayerNormBackward& args);
void add_rms_norm(const AddRmsNorm& args);
void add_rms_norm_backward(const AddRmsNormBackward& args);

void add_squares(const AddSquares& args);

void update(const OptimizerUpdate& args);

void max_pool(const MaxPool& args);
void max_pool_backward(const MaxPoolBackward& args);

void norm_max_pool(const NormMaxPool& args);
void norm_max_pool_sums(const NormMaxPoolSums& args);
void norm_max_pool_backward(const NormMaxPoolBackward& args);

void lstm_step(const LstmStep& args);
void lstm_step_backward(const LstmStepBackward& args);

void quantize_blocks(const QuantizeBlocks& args);
void dequantize_blocks(const DequantizeBlocks& args);
void sum_blocks(const SumBlocks& args);

}  // namespace dstrain::kernels::reference
