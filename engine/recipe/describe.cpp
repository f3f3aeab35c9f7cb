#include "engine/recipe/describe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/recipe/families.h"
#include "engine/recipe/field_limits.h"

namespace dstrain {
namespace {

constexpr double kMaxSize = 65536;
constexpr double kMaxExperts = 512;

/// "ViT, arXiv:2010.11929, table 1; BLOOM, ...".
std::string family_sources() {
  std::vector<std::string_view> sources;
  for (const ModelFamily& family : model_families()) {
    if (!family.source.empty()) sources.push_back(family.source);
  }
  return fmt::format("{}", fmt::join(sources, "; "));
}

/// "query, value (vit), query_key_value (bloom), ...".
std::string usual_targets() {
  std::vector<std::string> of_families;
  for (const ModelFamily& family : model_families()) {
    if (family.lora_targets.empty()) continue;
    of_families.push_back(
        fmt::format("{} ({})", fmt::join(family.lora_targets, ", "), family.name));
  }
  return fmt::format("{}", fmt::join(of_families, "; "));
}

}  // namespace

void describe(Recipe& r, Visitor& v) {
  v.section("model", r.model,
            "What is trained. Sizes left at 0 are those of the folder weights, else of the name.");
  v.section("lora", r.lora, "Low-rank adapters trained in place of the weights.");
  v.section("experts", r.experts, "How the experts of a mixture are made and trained.");
  v.section("batch_norm", r.batch_norm, "How batch norm takes its statistics.");
  v.section("data", r.data, "What it is trained on.");
  v.section("batch", r.batch, "How many samples make an optimizer step.");
  v.section("preference", r.preference,
            "Training on pairs of answers: data.name chat with records of prompt, chosen and "
            "rejected.");
  v.section("optimizer", r.optimizer, "How the weights are updated.");
  v.section("ema", r.ema, "Average of the weights over the steps, evaluated beside them.");
  v.section("precision", r.precision, "Number formats of the computation and of the states.");
  v.section("parallel", r.parallel,
            "How the work is split over the ranks; the data axis is what the degrees leave over.");
  v.section("memory", r.memory, "What is given up to need less memory.");
  v.section("run", r.run, "How long, how often, where to.");
  v.list(
      "phases", r.phases,
      "Parts of the run, one after the other, with trained tensors, learning rate and image size "
      "of their own; their lengths are that of the run. Moments start anew in each, and the "
      "schedule spans one.");
  v.section("trace", r.trace, "Steps of which everything is recorded, kernel by kernel.");
  v.section("metrics", r.metrics, "What is measured and written while the run goes on.");
}

void describe(ModelConfig& c, Visitor& v) {
  static const std::string sources = family_sources();
  v.field("name", c.name,
          {.text = "Model family and size; with weights, their config.json says it.",
           .source = sources,
           .required = true,
           .unless = "weights",
           .names = model_names()});
  v.field("classes", c.classes,
          {.text = "Outputs of the head; 0 takes the number of classes of the data.",
           .min = 0,
           .max = 10000000});
  v.field("weights", c.weights,
          {.text = "Folder with config.json and model.safetensors, or pytorch_model.bin, to start "
                   "from, or its name on the Hub, hf://ORG/NAME; empty starts from random weights.",
           .path = true});
  v.field("image_size", c.image_size,
          {.text = "Side of the square input; 0 takes what folder or name say.",
           .unit = "pixels",
           .min = 0,
           .max = 16384});
  v.field("patch_size", c.patch_size,
          {.text = "Side of a patch; 0 takes what folder or name say.",
           .unit = "pixels",
           .min = 0,
           .max = 1024});
  v.field("channels", c.channels,
          {.text = "Colours per pixel; 0 takes what folder or name say.", .min = 0, .max = 1024});
  v.field("width", c.width,
          {.text = "Length of a token vector; 0 takes what folder or name say.",
           .min = 0,
           .max = kMaxSize});
  v.field("layers", c.layers,
          {.text = "Transformer layers; 0 takes what folder or name say.", .min = 0, .max = 4096});
  v.field("heads", c.heads,
          {.text = "Attention heads per layer; 0 takes what folder or name say.",
           .min = 0,
           .max = 4096});
  v.field("mlp_width", c.mlp_width,
          {.text = "Hidden width of the MLP; 0 takes what folder or name say.",
           .min = 0,
           .max = 1048576});
  v.field("kv_heads", c.kv_heads,
          {.text = "Key and value heads per layer, where queries are grouped; 0 takes what folder "
                   "or name say.",
           .min = 0,
           .max = 4096,
           .source = "arXiv:2305.13245"});
  v.field(
      "head_dim", c.head_dim,
      {.text = "Elements of a head, where they do not follow from width and heads; 0 takes what "
               "folder or name say.",
       .min = 0,
       .max = 4096});
  v.field("vocab_size", c.vocab_size,
          {.text = "Rows of the token embedding; 0 takes what folder or name say.",
           .unit = "tokens",
           .min = 0,
           .max = 16777216});
  v.field("experts", c.experts,
          {.text = "Experts of a layer; 0 takes what folder or name say.",
           .min = 0,
           .max = kMaxExperts,
           .source = "arXiv:2407.10671, sec. 2.2.2"});
  v.field("experts_per_token", c.experts_per_token,
          {.text = "Experts that a token takes; 0 takes what folder or name say.",
           .min = 0,
           .max = kMaxExperts});
  v.field("expert_width", c.expert_width,
          {.text = "Hidden width of an expert; 0 takes what folder or name say.",
           .min = 0,
           .max = 1048576});
  v.field("shared_width", c.shared_width,
          {.text = "Hidden width of the expert that every token takes; 0 takes what folder or name "
                   "say.",
           .min = 0,
           .max = 1048576});
  v.field("rope_theta", c.rope_theta,
          {.text = "Base of the rotary positions; 0 takes what folder or name say.",
           .min = 0,
           .source = "arXiv:2104.09864"});
  v.field("dropout", c.dropout,
          {.text = "Share of the features set to zero before the classifier; -1 takes what the "
                   "name says.",
           .min = -1,
           .max = 1,
           .below_max = true});
  v.field("drop_path", c.drop_path,
          {.text = "Share of samples that skip the last block; it grows in a straight line from 0 "
                   "at the first block. -1 takes what the name says.",
           .min = -1,
           .max = 1,
           .below_max = true,
           .source = "stochastic depth, arXiv:1603.09382"});
  v.field("trunk", c.trunk, {.text = "Model whose features the LSTM reads (cnn-lstm)."});
  v.field("members", c.members, {.text = "Names of the models of an ensemble."});
  v.field("member_weights", c.member_weights,
          {.text = "Weight of each member in the average; empty: equal.", .min = 0});
  v.field("average", c.average, {.text = "What an ensemble averages."});
  v.field("frozen", c.frozen,
          {.text = "Patterns (* and ?) of the names of tensors that are not trained."});
}

void describe(ExpertsConfig& c, Visitor& v) {
  v.field("upcycle", c.upcycle,
          {.text = "The folder model.weights is a dense model whose MLPs become the experts.",
           .source = "arXiv:2410.07524"});
  v.field("balance_loss", c.balance_loss,
          {.text = "Coefficient of the loss that spreads the tokens of a sample over the experts, "
                   "a mean over samples and layers, padding left out; 0: none.",
           .min = 0,
           .source = "arXiv:2101.03961, eq. 4"});
  v.field("z_loss", c.z_loss,
          {.text = "Coefficient of the loss that keeps the router's logits small; 0: none.",
           .min = 0,
           .source = "arXiv:2202.08906, eq. 5"});
  v.field("planned_load", c.planned_load,
          {.text = "Rows of a rank's experts that memory is planned for, over the even share.",
           .min = 1,
           .max = 64});
}

void describe(BatchNormConfig& c, Visitor& v) {
  v.field("over", c.over,
          {.text = "Samples of which a training step takes mean and variance.",
           .source = "arXiv:1502.03167"});
  v.field(
      "momentum", c.momentum,
      {.text = "Share of a step's statistics in the running ones; 0 takes what the model's name "
               "says.",
       .min = 0,
       .max = 1});
  v.field("eps", c.eps,
          {.text = "Added to the variance; 0 takes what the model's name says.", .min = 0});
}

void describe(LoraConfig& c, Visitor& v) {
  static const std::string targets =
      "Patterns (* and ?) of the linear maps that get an adapter; one without a dot is matched "
      "against the last part of the name. all-linear: all but the head. Empty: " +
      usual_targets() + ".";
  v.field("rank", c.rank,
          {.text = "Rank of the adapters; 0 trains the weights themselves.",
           .min = 0,
           .max = 4096,
           .source = "arXiv:2106.09685, sec. 4.1"});
  v.field(
      "alpha", c.alpha,
      {.text = "The adapters' product is scaled by alpha / rank.", .min = 0, .above_min = true});
  v.field("rslora", c.rslora,
          {.text = "Scale by alpha / sqrt(rank).", .source = "arXiv:2312.03732, sec. 3"});
  v.field("dropout", c.dropout,
          {.text = "Share of an adapter's input that is set to zero in training.",
           .min = 0,
           .max = 1,
           .below_max = true});
  v.field(
      "lr_ratio", c.lr_ratio,
      {.text = "Learning rate of the matrices B, which start at zero, over that of the matrices "
               "A, which is optimizer.lr (LoRA+).",
       .min = 0,
       .above_min = true,
       .source = "arXiv:2402.12354, sec. 4"});
  v.field("targets", c.targets, {.text = targets});
  v.field(
      "also_train", c.also_train,
      {.text = "Patterns of tensors, or of modules that hold them, that are trained in full beside "
               "the adapters, such as a new head."});
  v.field("weights", c.weights,
          {.text = "Folder of a PEFT adapter of the same rank, alpha and targets to start from, or "
                   "hf://ORG/NAME; empty starts from new adapters.",
           .path = true});
  v.field("base", c.base,
          {.text = "How the frozen matrices of layers rest. Embedding, head, norms and biases keep "
                   "the compute type.",
           .source = "arXiv:2305.14314, sec. 3"});
  v.field(
      "double", c.double_coded,
      {.text = "With base nf4: the maxima of blocks rest in 8 bits, 0.52 bytes a weight in all, "
               "or in fp32, 0.56 bytes."});
}

void describe(ParallelConfig& c, Visitor& v) {
  v.section("zero", c.zero, "Which states the data ranks split among themselves.");
  v.section("stages", c.stages, "How the ranks of a pipeline cut the model and run it.");
  v.field(
      "tensor", c.tensor,
      {.text = "Ranks that split the matrices of each layer, and between them the rows of a "
               "micro-batch. It divides heads, MLP width and rows, and divides the key and value "
               "heads or is a multiple of them.",
       .unit = "ranks",
       .min = 1,
       .max = kMaxSize,
       .source = "Megatron-LM, arXiv:1909.08053, sec. 3"});
  v.field("sequence", c.sequence,
          {.text = "Ranks that split one sequence, of text; twice as many divide data.sequence.",
           .unit = "ranks",
           .min = 1,
           .max = kMaxSize,
           .source = "context parallelism of Llama 3, arXiv:2407.21783, sec. 3.3.2"});
  v.field("sequence_attention", c.sequence_attention,
          {.text = "How they attend to each other's tokens."});
  v.field("pipeline", c.pipeline,
          {.text = "Stages that the list of blocks is cut into.",
           .unit = "ranks",
           .min = 1,
           .max = kMaxSize,
           .source = "1F1B, arXiv:2006.09503, sec. 3.2"});
  v.field("expert", c.expert,
          {.text = "Ranks that split the experts of a layer.",
           .unit = "ranks",
           .min = 1,
           .max = kMaxSize,
           .source = "GShard, arXiv:2006.16668"});
  v.field("bucket", c.bucket,
          {.text = "Neighbouring blocks share a group of parameters, gathered and reduced at once, "
                   "up to this size of their fp32 gradients; 0 gives each block its own.",
           .unit = "MiB",
           .min = 0,
           .max = 65536});
  v.field(
      "peer_copies", c.peer_copies,
      {.text = "What data ranks on GPUs of one host gather and reduce, and rows of tensor ranks, "
               "travel by copies between their memories, not by kernels of NCCL, which take "
               "processors from the products beside them. Two pieces of up to 128 MiB each take "
               "the place of a communicator's buffers."});
  v.field("backend", c.backend, {.text = "Library that moves data between ranks."});
}

void describe(StagesConfig& c, Visitor& v) {
  v.field("schedule", c.schedule, {.text = "Order in which the ranks run their chunks."});
  v.field(
      "chunks", c.chunks,
      {.text = "Chunks of consecutive blocks that each rank runs; 0 means 1 for gpipe and 1f1b, "
               "else 2.",
       .unit = "chunks",
       .min = 0,
       .max = 64});
  v.field(
      "layers", c.layers,
      {.text = "Layers of each chunk, in model order; the first one has the embedding, too, the "
               "last one the head. Empty: balanced by cost, embedding and head included.",
       .unit = "layers",
       .min = 0,
       .max = kMaxSize});
  v.field("in_flight", c.in_flight,
          {.text = "Activations that a rank holds under zero_bubble, in micro-batches of all its "
                   "chunks; 0 means what its memory leaves, at most twice the ranks of the "
                   "pipeline.",
           .unit = "micro-batches",
           .min = 0,
           .max = 64});
}

void describe(ZeroConfig& c, Visitor& v) {
  v.field("stage", c.stage,
          {.text = "0 splits nothing (DDP), 1 the optimizer states, 2 also the gradients, 3 also "
                   "the parameters.",
           .min = 0,
           .max = 3,
           .source = "ZeRO, arXiv:1910.02054, sec. 5"});
  v.field("shard", c.shard,
          {.text = "Ranks that share one copy of the split states; 0 means all data ranks.",
           .unit = "ranks",
           .min = 0,
           .max = kMaxSize});
  v.field("prefetch", c.prefetch,
          {.text = "Parameter groups gathered ahead of their use (stage 3).",
           .unit = "groups",
           .min = 0,
           .max = 4096});
  v.field("second_shard", c.second_shard,
          {.text = "Ranks, of one node as a rule, that hold one more copy of the parameters for "
                   "the backward pass, which then gathers among them (stage 3; divides shard). 0 "
                   "and 1: there is none.",
           .unit = "ranks",
           .min = 0,
           .max = kMaxSize,
           .source = "ZeRO++, arXiv:2306.10209, sec. 3.2"});
}

void describe(MemoryConfig& c, Visitor& v) {
  v.field(
      "recompute", c.recompute,
      {.text = "Activations that are computed again in the backward pass instead of kept: none, "
               "those of all blocks, or (auto) of as few as fit the memory. With auto, outputs "
               "of GELU and SwiGLU, which are always made again else, are kept where they fit, and "
               "a language model's loss is computed in larger chunks."});
  v.field(
      "tiles", c.tiles,
      {.text = "Rows (tokens or patches of a micro-batch) on which the MLP of a layer works at "
               "once, where this is less than all: its inner activations exist for so many "
               "rows only, in training as in evaluation, and are made again in backward; layers "
               "hand on one tensor instead of two. 0 takes all rows. Gradients of its weights "
               "are summed tile by tile.",
       .unit = "rows",
       .min = 0,
       .max = kMaxSize,
       .source = "ALST, arXiv:2506.13996, sec. 3.1"});
  v.field("limit", c.limit,
          {.text = "Memory that one rank may hold, by which recompute: auto and dstrain plan go; 0 "
                   "takes the GPU's (auto: the smallest one's less 4 %), and no limit on the CPU.",
           .unit = "GiB",
           .min = 0,
           .max = 1048576});
  v.field("host_limit", c.host_limit,
          {.text = "Host memory that all ranks of a host may hold together; 0 takes what the "
                   "machine or its cgroup has left.",
           .unit = "GiB",
           .min = 0,
           .max = 1048576});
  v.section("offload", c.offload, "What rests in host memory or files instead of on the device.");
}

void describe(OffloadConfig& c, Visitor& v) {
  v.field("optimizer", c.optimizer,
          {.text = "Place of master weights and optimizer moments.",
           .source = "ZeRO-Offload, arXiv:2101.06840"});
  v.field("parameters", c.parameters,
          {.text = "Place of the parameters; ZeRO stage 3 or one data rank.",
           .source = "ZeRO-Infinity, arXiv:2104.07857"});
  v.field("activations", c.activations,
          {.text = "Place of the inputs of recomputed blocks until their backward pass."});
  v.field("share", c.share,
          {.text = "Share of the optimizer states that is offloaded; 0 offloads as little as the "
                   "memory plan needs.",
           .min = 0,
           .max = 1});
  v.field("update", c.update, {.text = "What updates offloaded states."});
  v.field("threads", c.threads,
          {.text = "CPU threads of a rank for updates and files; 0 takes its part of the cores "
                   "less 2.",
           .unit = "threads",
           .min = 0,
           .max = 4096});
  v.field("chunk", c.chunk,
          {.text = "Elements that travel and are updated at once; a multiple of 128, and at most "
                   "1024 such parts in a group of parameters.",
           .unit = "elements",
           .min = 128,
           .max = 1073741824});
  v.field("path", c.path, {.text = "Directory of place file, on a local disk.", .path = true});
}

void describe(TraceConfig& c, Visitor& v) {
  constexpr double kMaxWindow = 100;  // the profiler's buffers hold some hundred steps
  v.field(
      "steps", c.steps,
      {.text = "Steps of a window; 0 records none.", .unit = "steps", .min = 0, .max = kMaxWindow});
  v.field("first", c.first,
          {.text = "First recorded step, counted from the start of the run or from the step that "
                   "it is resumed at. The first steps make handles, plans and buffers, and the one "
                   "before this warms the profiler up; 2 records the step after a single one.",
           .min = 2,
           .max = kMaxSteps});
  v.field("warmup", c.warmup,
          {.text = "Steps before it that run with the profiler on and are thrown away.",
           .unit = "steps",
           .min = 1,
           .max = kMaxWindow});
  v.field("every", c.every, {.text = "From one window to the next; never records one window."});
  v.field("ranks", c.ranks,
          {.text = "Ranks that record; empty: all of them, and beyond 64 the first rank of every "
                   "16th host and of each stage of a pipeline.",
           .min = 0,
           .max = 1 << 20});
  v.field("detail", c.detail, {.text = "What is recorded."});
  v.field("memory", c.memory, {.text = "Record each allocation, too."});
  v.field("graphs", c.graphs,
          {.text = "Launch CUDA graphs as in other steps: the true times where the host is the "
                   "limit, but no operators inside the graphs."});
  v.field("compress", c.compress, {.text = "Form of the files."});
  v.field("merge", c.merge,
          {.text = "Join the files of all ranks into merged_trace.json when the run has ended."});
  v.field("output", c.output,
          {.text = "Folder of the files; empty: traces/ in the folder of the run.", .path = true});
}

void describe(MetricsConfig& c, Visitor& v) {
  v.field(
      "timing", c.timing,
      {.text = "Which steps are timed in their parts: forward, backward, norm, update, waits."});
  v.field("sample_s", c.sample_s,
          {.text = "How often memory.csv, gpu.csv and cpu.txt get a line; 0 writes none.",
           .unit = "s",
           .min = 0,
           .max = 3600});
  v.field("tensorboard", c.tensorboard, {.text = "Write TensorBoard's event files."});
  v.field("wandb", c.wandb, {.text = "Write a run of Weights & Biases in wandb/."});
  v.field("wandb_project", c.wandb_project, {.text = "Its project."});
  v.field("wandb_entity", c.wandb_entity,
          {.text = "Its team or user; empty: whose key sends the files."});
  v.field("wandb_group", c.wandb_group, {.text = "Its group of runs; empty: none."});
  v.field("prometheus", c.prometheus,
          {.text = "Text file of gauges for node_exporter's textfile collector, renamed into place "
                   "every 15 s; empty: none.",
           .path = true});
}

}  // namespace dstrain
