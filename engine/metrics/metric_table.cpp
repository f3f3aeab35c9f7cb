#include "engine/metrics/metric_table.h"

namespace dstrain {
namespace {

using Step = StepMetrics;
using Evaluation = EvaluationMetrics;

constexpr double kGibPerByte = 1.0 / (1 << 30);

constexpr Metric<Step> kStep[] = {
    {.name = "step", .unit = "", .value = &Step::step},
    {.name = "epoch", .unit = "epochs", .value = &Step::epoch, .tag = "train/epoch"},
    {.name = "loss", .unit = "", .value = &Step::loss, .tag = "train/loss"},
    {.name = "accuracy",
     .unit = "",
     .value = &Step::accuracy,
     .may_be_unknown = true,
     .tag = "train/accuracy"},
    {.name = "balance_loss",
     .unit = "",
     .value = &Step::balance_loss,
     .may_be_unknown = true,
     .tag = "train/balance_loss"},
    {.name = "lr", .unit = "", .value = &Step::lr, .tag = "train/lr"},
    {.name = "grad_norm", .unit = "", .value = &Step::grad_norm, .tag = "train/grad_norm"},
    {.name = "samples_per_s",
     .unit = "1/s",
     .value = &Step::samples_per_s,
     .tag = "train/samples_per_s"},
    {.name = "tokens_per_s",
     .unit = "1/s",
     .value = &Step::tokens_per_s,
     .tag = "train/tokens_per_s"},
    {.name = "mfu", .unit = "", .value = &Step::mfu, .tag = "train/mfu"},
    {.name = "step_s", .unit = "s", .value = &Step::step_s},
    {.name = "memory_bytes",
     .unit = "bytes",
     .value = &Step::memory_bytes,
     .tag = "memory/peak_gib",
     .tag_scale = kGibPerByte},
    {.name = "loss_scale", .unit = "", .value = &Step::loss_scale, .tag = "train/loss_scale"},
    {.name = "skipped_steps", .unit = "steps", .value = &Step::skipped_steps},
    {.name = "forward_s",
     .unit = "s",
     .value = &Step::forward_s,
     .may_be_unknown = true,
     .tag = "time/forward_s"},
    {.name = "backward_s",
     .unit = "s",
     .value = &Step::backward_s,
     .may_be_unknown = true,
     .tag = "time/backward_s"},
    {.name = "optimizer_s",
     .unit = "s",
     .value = &Step::optimizer_s,
     .may_be_unknown = true,
     .tag = "time/optimizer_s"},
    {.name = "data_wait_s",
     .unit = "s",
     .value = &Step::data_wait_s,
     .may_be_unknown = true,
     .tag = "time/data_wait_s"},
    {.name = "exposed_comm_s",
     .unit = "s",
     .value = &Step::exposed_comm_s,
     .may_be_unknown = true,
     .tag = "time/exposed_comm_s"},
    {.name = "gpu_util",
     .unit = "",
     .value = &Step::gpu_util,
     .may_be_unknown = true,
     .tag = "gpu/utilization"},
    {.name = "gpu_temp_c",
     .unit = "C",
     .value = &Step::gpu_temp_c,
     .may_be_unknown = true,
     .tag = "gpu/temperature_c"},
};

constexpr Metric<Evaluation> kEvaluation[] = {
    {.name = "step", .unit = "", .value = &Evaluation::step},
    {.name = "epoch", .unit = "epochs", .value = &Evaluation::epoch},
    {.name = "loss", .unit = "", .value = &Evaluation::loss, .tag = "evaluation/loss"},
    {.name = "accuracy",
     .unit = "",
     .value = &Evaluation::accuracy,
     .may_be_unknown = true,
     .tag = "evaluation/accuracy"},
    {.name = "top5",
     .unit = "",
     .value = &Evaluation::top5,
     .may_be_unknown = true,
     .tag = "evaluation/top5"},
    {.name = "samples", .unit = "samples", .value = &Evaluation::samples},
    {.name = "targets", .unit = "targets", .value = &Evaluation::targets},
    {.name = "seconds", .unit = "s", .value = &Evaluation::seconds},
};

}  // namespace

std::span<const Metric<StepMetrics>> step_metrics() { return kStep; }
std::span<const Metric<EvaluationMetrics>> evaluation_metrics() { return kEvaluation; }

}  // namespace dstrain
