#include "engine/recipe/describe.h"
#include "engine/recipe/field_limits.h"

/// Fields of data and batches.
namespace dstrain {
namespace {

constexpr double kMaxBatchSize = 1 << 24;

// Keys of a data set, alone or in a mixture.

template <class Set>
void describe_source(Set& c, Visitor& v) {
  v.field("path", c.path,
          {.text = "File or folder of the data set, or hf://datasets/ORG/NAME.", .path = true});
  v.field("label", c.label,
          {.text = "Column of a parquet file that holds the classes; of CIFAR-100 in any form "
                   "fine_label or coarse_label; of webdataset the ending of the files with their "
                   "numbers, or json.FIELD. Empty takes fine_label, or the only one, and cls."});
}

template <class Set>
void describe_choice(Set& c, Visitor& v) {
  v.field("subset", c.subset,
          {.text = "Uses so many samples of each split, 0 uses all: the first of text; of images a "
                   "choice by run.seed, from each class in turn.",
           .unit = "samples",
           .min = 0,
           .max = kMaxSteps});
  v.field("loss", c.loss, {.text = "Tokens whose prediction is trained."});
}

template <class Set>
void describe_records(Set& c, Visitor& v) {
  v.field("prompt", c.prompt,
          {.text = "Template of the part before the answer (jsonl); {NAME} stands for a field. In "
                   "double quotes, \\n is a line end.",
           .lines = true});
  v.field("response", c.response,
          {.text = "Template of the answer (jsonl); {NAME} stands for a field.", .lines = true});
  v.field("template", c.template_file,
          {.text = "Jinja file of the chat template (chat); empty takes the tokenizer's own.",
           .path = true});
  v.field(
      "template_args", c.template_args,
      {.text = "NAME=VALUE for the template (chat), such as enable_thinking=false; a VALUE that "
               "is JSON is taken as such."});
  v.field(
      "chat_date", c.chat_date,
      {.text = "The day that a template sees as date_string and by strftime_now (chat), such as "
               "26 Jul 2024 or 2024-07-26. Empty: strftime_now gives 26 Jul 2024, so that tokens "
               "do not change from day to day, and date_string is not set."});
  v.field("split_turns", c.split_turns,
          {.text = "Makes a sample of each answer of a chat, with what stands before it (chat), as "
                   "the model is asked: templates such as Qwen3's leave thoughts out of earlier "
                   "turns."});
  v.field("too_long", c.too_long,
          {.text = "What becomes of a sample longer than sequence; pairs of "
                   "preference.loss are never cut but left out."});
  v.field("bad_record", c.bad_record,
          {.text = "What becomes of a record or an image that cannot be used."});
  v.field("test_share", c.test_share,
          {.text = "Share of the samples held out for evaluation where there is no test split.",
           .min = 0,
           .max = 1,
           .below_max = true});
}

}  // namespace

void describe(DataConfig& c, Visitor& v) {
  v.field("name", c.name,
          {.text = "Data set; mixture where data.mixture lists several.",
           .required = true,
           .unless = "mixture"});
  describe_source(c, v);
  v.field("augment", c.augment, {.text = "Changes made to training images, in this order."});
  v.field("resize", c.resize,
          {.text = "How an image of a file becomes square, of which the model gets the middle, or "
                   "what random_crop cuts. Default with model.weights: as its image processor "
                   "says, like interpolation and normalize."});
  v.field("resize_side", c.resize_side,
          {.text = "Side of that square; 0 takes model.image_size, times 8/7 with resize crop.",
           .unit = "pixels",
           .min = 0,
           .max = 16384});
  v.field("interpolation", c.interpolation,
          {.text = "Filter of the resize; it widens with the reduction."});
  v.field("jpeg_scaling", c.jpeg_scaling,
          {.text = "Decodes a JPEG at a half, a quarter or an eighth of its size where that is "
                   "enough: faster, and slightly other pixels."});
  v.field("crop_padding", c.crop_padding,
          {.text = "Zeros around the image before random_crop cuts it.",
           .unit = "pixels",
           .min = 0,
           .max = 1024});
  v.field("crop_scale", c.crop_scale,
          {.text = "Smallest and largest share of the area that random_resized_crop cuts.",
           .min = 0,
           .max = 1,
           .above_min = true,
           .length = 2});
  v.field("crop_ratio", c.crop_ratio,
          {.text = "Smallest and largest width / height of what random_resized_crop cuts.",
           .min = 0,
           .above_min = true,
           .length = 2});
  v.field("randaugment_ops", c.randaugment_ops,
          {.text = "Operations of rand_augment on an image.", .min = 1, .max = 16});
  v.field("randaugment_magnitude", c.randaugment_magnitude,
          {.text = "Strength of rand_augment's operations.", .min = 0, .max = 30});
  v.field(
      "erase_probability", c.erase_probability,
      {.text = "Share of the images of which random_erasing fills a part.", .min = 0, .max = 1});
  v.field("erase_area", c.erase_area,
          {.text = "Smallest and largest share of the area that random_erasing fills.",
           .min = 0,
           .max = 1,
           .length = 2});
  v.field("erase_fill", c.erase_fill, {.text = "What random_erasing fills it with."});
  v.field("mixup_alpha", c.mixup_alpha,
          {.text = "Both parameters of the beta distribution of mixup's shares.",
           .min = 0,
           .above_min = true});
  v.field("cutmix_alpha", c.cutmix_alpha,
          {.text = "Both parameters of the beta distribution of cutmix's areas.",
           .min = 0,
           .above_min = true});
  v.field("decode", c.decode, {.text = "What decodes JPEG files."});
  v.field("pack", c.pack, {.text = "One file for all images, made by dstrain data prepare."});
  v.field("pack_side", c.pack_side,
          {.text = "Shorter side of packed images; 0 takes resize_side.",
           .unit = "pixels",
           .min = 0,
           .max = 16384});
  v.field("frames", c.frames,
          {.text = "Frames of a clip, spread evenly over it; of random data of a model that takes "
                   "clips, too.",
           .unit = "frames",
           .min = 1,
           .max = 4096});
  v.field("samples", c.samples,
          {.text = "Training samples of an epoch of random data.",
           .unit = "samples",
           .min = 1,
           .max = kMaxSteps});
  v.field("tokenizer", c.tokenizer,
          {.text = "tokenizer.json, its folder or hf://ORG/NAME; empty takes model.weights.",
           .path = true});
  v.field("sequence", c.sequence,
          {.text = "Length of a sample of text; shorter ones are filled up.",
           .unit = "tokens",
           .min = 2,
           .max = 1048576});
  v.field("last", c.last,
          {.text = "What becomes of the last samples of an epoch, where they are fewer than "
                   "batch.global."});
  describe_choice(c, v);
  v.field("packing", c.packing,
          {.text = "Puts several samples into one sequence; none attends to another."});
  describe_records(c, v);
  v.field("cache", c.cache,
          {.text = "Folder for tokenised text and packed images; empty takes tokens/ and images/ "
                   "in dstrain's cache folder.",
           .path = true});
  v.field("workers", c.workers,
          {.text = "Threads that read and decode, per rank.",
           .unit = "threads",
           .min = 1,
           .max = 1024});
  v.field("prefetch", c.prefetch,
          {.text = "Micro-batches decoded ahead.", .unit = "micro-batches", .min = 1, .max = 1024});
  v.field(
      "mixture_temperature", c.mixture_temperature,
      {.text = "T of the weights samples^(1/T) of a mixture without weights: 1 is by size, more "
               "is closer to equal shares.",
       .min = 1,
       .source = "arXiv:1907.05019, sec. 4"});
  v.field(
      "epoch_of", c.epoch_of,
      {.text = "When an epoch of a mixture ends: sum, after as many samples as all members have; "
               "shortest, when the first member has given all of its own; longest, when every "
               "member has; or when member N has, counted from 0."});
  v.section("normalize", c.normalize,
            "What becomes of a pixel's value from 0 to 255: (value x scale - mean) / std.");
  v.list(
      "mixture", c.mixture,
      "Data sets that are trained together, each by its share of the samples, and evaluated each "
      "and in all. Keys of the model's input, such as data.sequence, stand under data.");
}

void describe(MemberConfig& c, Visitor& v) {
  v.field("name", c.name, {.text = "Data set of the mixture.", .required = true});
  v.field("weight", c.weight,
          {.text = "Over the sum of all weights: the share of the samples that are its own. All "
                   "members have one or none has; -1 goes by the number of its samples "
                   "(data.mixture_temperature)."});
  describe_source(c, v);
  describe_choice(c, v);
  describe_records(c, v);
}

void describe(NormalizeConfig& c, Visitor& v) {
  v.field("scale", c.scale, {.text = "Factor of the stored value.", .min = 0, .above_min = true});
  v.field("mean", c.mean, {.text = "Taken off: one number per channel, or one for all."});
  v.field(
      "std", c.deviation,
      {.text = "Divides: one number per channel, or one for all.", .min = 0, .above_min = true});
}

void describe(BatchConfig& c, Visitor& v) {
  v.field("global", c.global,
          {.text = "Samples of one optimizer step over all ranks.",
           .unit = "samples",
           .min = 1,
           .max = kMaxBatchSize,
           .required = true});
  v.field("micro", c.micro,
          {.text = "Samples that one rank takes through the model at once; the rest of the global "
                   "batch is accumulated.",
           .unit = "samples",
           .min = 1,
           .max = kMaxBatchSize,
           .required = true});
  v.field(
      "concurrent", c.concurrent,
      {.text = "Micro-batches that run at once, each on a stream of its own: while one waits for "
               "what tensor ranks exchange, or has small kernels, the other computes. 2 holds the "
               "activations of two.",
       .unit = "micro-batches",
       .min = 1,
       .max = 2});
}

}  // namespace dstrain
