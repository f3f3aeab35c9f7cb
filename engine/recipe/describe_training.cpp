#include "engine/recipe/describe.h"
#include "engine/recipe/field_limits.h"

/// The sections that say how weights are updated, and how long.
namespace dstrain {

void describe(OptimizerConfig& c, Visitor& v) {
  v.field("name", c.name, {.text = "Update rule."});
  v.field("lr", c.lr,
          {.text = "Highest learning rate.", .min = 0, .above_min = true, .required = true});
  v.field(
      "betas", c.betas,
      {.text =
           "Decay of the first and the second moment (adamw); of the gradients in a step and of "
           "the moment (lion, by default [0.9, 0.99]); muon's are of its adamw.",
       .min = 0,
       .max = 1,
       .below_max = true,
       .source = "Adam, arXiv:1412.6980, algorithm 1",
       .length = 2});
  v.field("eps", c.eps,
          {.text = "Added to the root of the second moment (adamw, and that of muon).",
           .min = 0,
           .above_min = true});
  v.field(
      "momentum", c.momentum,
      {.text = "Decay of the velocity (sgd) or the average of gradients (muon, by default 0.95).",
       .min = 0,
       .max = 1,
       .below_max = true});
  v.field("nesterov", c.nesterov,
          {.text = "The gradient counts once more beside the average (muon, where it is the "
                   "default; sgd)."});
  v.field("alpha", c.alpha,
          {.text = "Decay of the average of squares (rmsprop).",
           .min = 0,
           .max = 1,
           .below_max = true});
  v.field("rmsprop", c.rmsprop, {.text = "Form of rmsprop."});
  v.field("ns_steps", c.ns_steps,
          {.text = "Newton-Schulz iterations that orthogonalise an update (muon).",
           .min = 1,
           .max = 99});
  v.field("adjust_lr", c.adjust_lr,
          {.text = "Learning rate of a matrix by its shape, rows x columns (muon)."});
  v.field("weight_decay", c.weight_decay,
          {.text = "Share of each weight, biases and norms included, taken off per step, times the "
                   "learning rate; muon's default is 0.1.",
           .min = 0});
  v.field("no_decay", c.no_decay,
          {.text = "Patterns (* and ?) of the names of tensors without weight decay."});
  v.field("decay_vectors", c.decay_vectors,
          {.text = "false leaves norms and biases, all tensors of one dimension, without weight "
                   "decay."});
  v.field("clip_norm", c.clip_norm,
          {.text = "Gradients are scaled down to this global norm; 0 leaves them as they are.",
           .min = 0,
           .source = "arXiv:1211.5063, sec. 3.2"});
  v.field("label_smoothing", c.label_smoothing,
          {.text = "Share of the target given to all classes alike.",
           .min = 0,
           .max = 1,
           .below_max = true,
           .source = "arXiv:1512.00567, sec. 7"});
  v.field("schedule", c.schedule, {.text = "Course of the learning rate after the warm-up."});
  v.field("warmup_steps", c.warmup_steps,
          {.text = "Steps over which the learning rate rises to lr.",
           .unit = "steps",
           .min = 0,
           .max = kMaxSteps});
  v.field("warmup", c.warmup, {.text = "Course of the rise."});
  v.field("warmup_shift", c.warmup_shift,
          {.text = "Step i, from 0, counts as i + warmup_shift: 1 begins above the start, 0 at it "
                   "(Trainer), -1 with two steps at it (DeepSpeed).",
           .min = -1,
           .max = 1});
  v.field("warmup_ratio", c.warmup_ratio,
          {.text = "Learning rate where the rise starts, as a share of lr.", .min = 0, .max = 1});
  v.field("final_lr_ratio", c.final_lr_ratio,
          {.text = "Learning rate of the last step, as a share of lr.", .min = 0, .max = 1});
  v.field("decay_steps", c.decay_steps,
          {.text = "Step at which the decay of schedule linear or cosine ends; 0: the run's last.",
           .unit = "steps",
           .min = 0,
           .max = kMaxSteps});
  v.field("step_epochs", c.step_epochs,
          {.text = "Epochs, also parts of one, between two drops of schedule step.",
           .unit = "epochs",
           .min = 0,
           .above_min = true});
  v.field("step_factor", c.step_factor,
          {.text = "Factor of each drop of schedule step.", .min = 0, .max = 1, .above_min = true});
}

void describe(PreferenceConfig& c, Visitor& v) {
  v.field(
      "loss", c.loss,
      {.text = "Loss of a pair; that of a step is the mean over its pairs. The reference of dpo "
               "and ipo are the weights that the run starts from: an evaluation before the "
               "first step writes its log-probabilities beside the tokens, and later runs read "
               "them."});
  v.field("beta", c.beta,
          {.text = "Factor of the rewards; of orpo, weight of the ratio of odds.",
           .min = 0,
           .above_min = true});
  v.field("gamma", c.gamma, {.text = "Margin that the rewards are to have (simpo).", .min = 0});
  v.field("smoothing", c.smoothing,
          {.text = "Share of the pairs whose answers are taken to be swapped (dpo).",
           .min = 0,
           .max = 0.5,
           .below_max = true,
           .source = "arXiv:2305.18290, conservative DPO"});
}

void describe(EmaConfig& c, Visitor& v) {
  v.field("decay", c.decay,
          {.text = "Share of the old average that an update keeps; 0: there is no average.",
           .min = 0,
           .max = 1,
           .below_max = true});
  v.field(
      "every", c.every,
      {.text = "Steps from one update to the next.", .unit = "steps", .min = 1, .max = kMaxSteps});
  v.field("warmup", c.warmup,
          {.text = "The decay is at most (1 + t) / (10 + t) at update t, from 0."});
}

void describe(PrecisionConfig& c, Visitor& v) {
  v.field("compute", c.compute,
          {.text = "Format of weights and activations in the forward and backward pass.",
           .source = "arXiv:1710.03740"});
  v.field("states", c.states, {.text = "Format of master weights and optimizer moments."});
  v.field("gradients", c.gradients,
          {.text = "Format in which gradients are held and accumulated. bf16 needs reduce: bf16."});
  v.field("reduce", c.reduce,
          {.text = "Format in which gradients travel and are summed.",
           .source = "int8, int4: ZeRO++, arXiv:2306.10209, sec. 3.3"});
  v.field("gather", c.gather,
          {.text = "Format in which gathered parameters travel (stage 3); every rank computes with "
                   "what they are afterwards. Norms and biases travel as they are.",
           .source = "ZeRO++, arXiv:2306.10209, sec. 3.1"});
  v.field("non_finite", c.non_finite,
          {.text = "What follows a step whose gradients are not finite."});
  v.field("max_skipped", c.max_skipped,
          {.text = "Skipped steps in a row after which the run ends with exit code 93; steps that "
                   "lower the loss scale (fp16) are not counted.",
           .unit = "steps",
           .min = 1,
           .max = kMaxSteps});
  v.section("loss_scale", c.loss_scale,
            "Dynamic loss scale (fp16): halved after a step that is not finite.");
}

void describe(LossScaleConfig& c, Visitor& v) {
  v.field("initial", c.initial, {.text = "Factor at the first step.", .min = 0, .above_min = true});
  v.field("growth_interval", c.growth_interval,
          {.text = "Finite steps in a row after which it doubles.",
           .unit = "steps",
           .min = 1,
           .max = kMaxSteps,
           .source = "arXiv:1710.03740, sec. 3.2"});
  v.field("fixed", c.fixed, {.text = "A factor that never changes; 0: it is dynamic.", .min = 0});
  v.field("hysteresis", c.hysteresis,
          {.text = "Steps that are not finite before it is halved.", .min = 1, .max = 1000});
  v.field("consecutive", c.consecutive,
          {.text = "Each finite step sets the count of hysteresis back."});
  v.field("minimum", c.minimum, {.text = "Smallest factor.", .min = 0, .above_min = true});
}

void describe(RunConfig& c, Visitor& v) {
  v.field("epochs", c.epochs,
          {.text = "Length of the run; 0 where steps says it.",
           .unit = "epochs",
           .min = 0,
           .max = 10000000});
  v.field("steps", c.steps,
          {.text = "Length of the run; 0 where epochs says it.",
           .unit = "optimizer steps",
           .min = 0,
           .max = kMaxSteps});
  v.field("seed", c.seed, {.text = "All random numbers are a function of it.", .min = 0});
  v.field("evaluate", c.evaluate, {.text = "How often the test split is evaluated."});
  v.field("generate", c.generate,
          {.text = "Answers to test samples that are written out and scored after each evaluation "
                   "(text). Where each rank has all weights whole they are dealt over ranks, and a "
                   "token costs one row; else it costs a pass over the whole sample.",
           .unit = "samples",
           .min = 0,
           .max = 1024});
  v.field(
      "generate_tokens", c.generate_tokens,
      {.text = "Longest of these answers, where data.sequence has room for it behind the prompt.",
       .unit = "tokens",
       .min = 1,
       .max = 65536});
  v.field(
      "compare_replicas", c.compare_replicas,
      {.text = "Steps from one comparison of the weights that several ranks hold to the next; 0 "
               "never compares. Before each save the states that it takes are compared, too. "
               "Where they differ, the rank that is wrong is named and the run ends with exit "
               "code 93 before it saves.",
       .unit = "optimizer steps",
       .min = 0,
       .max = kMaxSteps});
  v.section("checkpoint", c.checkpoint, "What is saved to go on from.");
  v.section("best", c.best,
            "The evaluation whose checkpoint is kept, and how long it is waited for.");
  v.field("output", c.output,
          {.text = "Folder in which each run makes its own folder.", .path = true});
}

void describe(CheckpointConfig& c, Visitor& v) {
  v.field(
      "every", c.every,
      {.text = "How often a checkpoint is saved, and after the last step; when the run is asked "
               "to stop, always. A time is that from one save to the next, and auto chooses one by "
               "what a save costs and how often so many ranks stop (a minute to an hour); such a "
               "save is skipped, and said, while the one before is still being written. Saves by "
               "steps or epochs wait for it.",
       .source = "auto: Young 1974, doi:10.1145/361147.361115",
       .clock = true});
  v.field("keep", c.keep, {.text = "Newest checkpoints that are kept.", .min = 1, .max = 1000000});
  v.field("asynchronous", c.asynchronous,
          {.text = "Write while training goes on; only the copy in memory is waited for."});
  v.field(
      "verify_rate", c.verify_rate,
      {.text = "After a save each rank reads the file of a rank of the next host from the disk, "
               "beside training and at most so fast, and compares its hash. `dstrain "
               "checkpoint list` says of which checkpoints all files were found as they were "
               "written; a file that is not is told at once. 0: never.",
       .unit = "MB/s",
       .min = 0,
       .max = 1000000});
}

void describe(BestConfig& c, Visitor& v) {
  v.field(
      "metric", c.metric,
      {.text = "Figure of the test split that says which is best, of the average where ema.decay "
               "is set (answers are never those of the average). A gain is saved at once and "
               "kept beside run.checkpoint.keep."});
  v.field("min_delta", c.min_delta, {.text = "A gain is more than that.", .min = 0});
  v.field("patience", c.patience,
          {.text = "Evaluations in a row without a gain after which the run stops; 0: never.",
           .unit = "evaluations",
           .min = 0,
           .max = 1000000});
  v.field(
      "load", c.load,
      {.text =
           "Whoever names the run (export, generate) gets the best checkpoint, not the newest."});
}

void describe(PhaseConfig& c, Visitor& v) {
  v.field("epochs", c.epochs,
          {.text = "Length; this or steps.", .unit = "epochs", .min = 0, .max = 10000000});
  v.field("steps", c.steps,
          {.text = "Length; this or epochs.", .unit = "steps", .min = 0, .max = kMaxSteps});
  v.field("frozen", c.frozen,
          {.text = "Patterns (* and ?) of the names of tensors that are not trained in this phase, "
                   "beside model.frozen. What a phase has trained, the next ones train."});
  v.field("lr", c.lr, {.text = "Learning rate; 0 takes optimizer.lr.", .min = 0});
  v.field("warmup_steps", c.warmup_steps,
          {.text = "Steps of warm-up; -1 takes optimizer.warmup_steps.",
           .unit = "steps",
           .min = -1,
           .max = kMaxSteps});
  v.field("image_size", c.image_size,
          {.text = "Side of the images; 0 takes model.image_size.",
           .unit = "pixels",
           .min = 0,
           .max = 16384});
}

}  // namespace dstrain
