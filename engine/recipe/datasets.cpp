#include "engine/recipe/datasets.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>

#include "engine/recipe/choices.h"
#include "engine/recipe/text.h"

namespace dstrain {
namespace {

using enum Modality;
using Paths = std::string_view;

constexpr Paths kPathPaths[] = {"data.path"};
constexpr DataKeys kPathKeys = {kPathPaths, {}, "data.name {} reads no files"};
constexpr Paths kSizePaths[] = {"data.samples"};
constexpr DataKeys kSizeKeys = {kSizePaths, {}, "only data.name random has it, here it is {}"};

constexpr Paths kImagePaths[] = {
    "data.augment",           "data.normalize.scale", "data.normalize.mean",
    "data.normalize.std",     "data.crop_padding",    "data.crop_scale",
    "data.crop_ratio",        "data.randaugment_ops", "data.randaugment_magnitude",
    "data.erase_probability", "data.erase_area",      "data.erase_fill",
    "data.mixup_alpha",       "data.cutmix_alpha"};
constexpr DataKeys kImageKeys = {kImagePaths, images, "data.name {} has no images"};
/// Images become squares of one size.
constexpr Paths kSquarePaths[] = {"data.resize", "data.resize_side", "data.jpeg_scaling",
                                  "data.pack", "data.pack_side"};
constexpr DataKeys kSquareKeys = {kSquarePaths, images, "images of data.name {} have one size"};
constexpr Paths kDecodePaths[] = {"data.decode"};
constexpr DataKeys kDecodeKeys = {kDecodePaths, images,
                                  "images of data.name {} are decoded by the CPU"};
constexpr Paths kFilterPaths[] = {"data.interpolation"};
constexpr DataKeys kFilterKeys = {kFilterPaths, images,
                                  "data.name {} makes images of the model's size"};

constexpr Paths kClipPaths[] = {"data.frames"};
constexpr DataKeys kClipKeys = {kClipPaths, images, "data.name {} has single images"};

constexpr Paths kRowPaths[] = {"data.sequence"};
constexpr DataKeys kRowKeys = {kRowPaths, text, "data.name {} has no text"};
constexpr Paths kTextPaths[] = {"data.tokenizer", "data.packing"};
constexpr DataKeys kTextKeys = {kTextPaths, text, "data.name {} has no text"};
/// Which samples of text are used, and what of them is trained.
constexpr Paths kSamplePaths[] = {"data.loss", "data.too_long", "data.test_share"};
constexpr DataKeys kSampleKeys = {kSamplePaths, text, "data.name {} has no text"};
/// Records of files, in text or as an image each.
constexpr Paths kRecordPaths[] = {"data.bad_record"};
constexpr DataKeys kRecordKeys = {kRecordPaths, {}, "data.name {} has no text or image files"};
constexpr Paths kCachePaths[] = {"data.cache"};
constexpr DataKeys kCacheKeys = {kCachePaths, {}, "data.name {} has no text or image files"};
constexpr Paths kSubsetPaths[] = {"data.subset"};
constexpr DataKeys kSubsetKeys = {kSubsetPaths, {}, "of data.name {} data.samples says how many"};
constexpr Paths kLabelPaths[] = {"data.label"};
constexpr DataKeys kLabelKeys = {kLabelPaths, images, "data.name {} has no choice of labels"};
constexpr Paths kTemplatePaths[] = {"data.prompt", "data.response"};
constexpr DataKeys kTemplateKeys = {kTemplatePaths, text,
                                    "only data.name jsonl has it, here it is {}"};

constexpr Paths kChatPaths[] = {"data.template", "data.template_args", "data.chat_date",
                                "data.split_turns"};
constexpr DataKeys kChatKeys = {kChatPaths, text, "only data.name chat has it, here it is {}"};

constexpr Paths kMixturePaths[] = {"data.mixture_temperature", "data.epoch_of"};
constexpr DataKeys kMixtureKeys = {kMixturePaths, {}, "data.name {} is no mixture"};

constexpr const DataKeys* kAllKeys[] = {
    &kPathKeys, &kSizeKeys,   &kImageKeys, &kSquareKeys,  &kDecodeKeys,  &kFilterKeys,
    &kClipKeys, &kRowKeys,    &kTextKeys,  &kSampleKeys,  &kRecordKeys,  &kCacheKeys,
    &kChatKeys, &kSubsetKeys, &kLabelKeys, &kMixtureKeys, &kTemplateKeys};

/// Read by images of one size, images of any size, text of files, JSON Lines and random data.
constexpr const DataKeys* kStored[] = {&kPathKeys, &kImageKeys, &kFilterKeys, &kSubsetKeys};
constexpr const DataKeys* kCifar[] = {&kPathKeys,  &kImageKeys,  &kFilterKeys, &kRecordKeys,
                                      &kCacheKeys, &kSubsetKeys, &kLabelKeys};
constexpr const DataKeys* kFiles[] = {&kPathKeys,   &kImageKeys,  &kFilterKeys,
                                      &kSquareKeys, &kDecodeKeys, &kRecordKeys,
                                      &kCacheKeys,  &kSubsetKeys, &kLabelKeys};
constexpr const DataKeys* kClips[] = {&kPathKeys,   &kImageKeys,  &kFilterKeys,
                                      &kSquareKeys, &kDecodeKeys, &kRecordKeys,
                                      &kCacheKeys,  &kClipKeys,   &kSubsetKeys};
constexpr const DataKeys* kText[] = {&kPathKeys,   &kRowKeys,   &kTextKeys,  &kSampleKeys,
                                     &kRecordKeys, &kCacheKeys, &kSubsetKeys};
constexpr const DataKeys* kJsonl[] = {&kPathKeys,   &kRowKeys,   &kTextKeys,     &kSampleKeys,
                                      &kRecordKeys, &kCacheKeys, &kTemplateKeys, &kSubsetKeys};
constexpr const DataKeys* kChat[] = {&kPathKeys,   &kRowKeys,   &kTextKeys, &kSampleKeys,
                                     &kRecordKeys, &kCacheKeys, &kChatKeys, &kSubsetKeys};
constexpr const DataKeys* kRandom[] = {&kSizeKeys, &kImageKeys, &kClipKeys, &kRowKeys};
constexpr const DataKeys* kTokens[] = {&kPathKeys,   &kRowKeys,    &kTextKeys,
                                       &kSampleKeys, &kRecordKeys, &kSubsetKeys};
/// A mixture reads these itself; its members read the others.
constexpr const DataKeys* kMixture[] = {&kMixtureKeys, &kImageKeys, &kFilterKeys, &kSquareKeys,
                                        &kClipKeys,    &kRowKeys,   &kTextKeys,   &kCacheKeys};
/// They stand at each member.
constexpr const DataKeys* kMemberKeys[] = {&kPathKeys,   &kLabelKeys, &kSubsetKeys,  &kSampleKeys,
                                           &kRecordKeys, &kChatKeys,  &kTemplateKeys};

constexpr Paths kCifar10Binary[] = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                    "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"};
constexpr Paths kCifar10Python[] = {"data_batch_1", "data_batch_2", "data_batch_3",
                                    "data_batch_4", "data_batch_5", "test_batch"};
constexpr Paths kCifar100Binary[] = {"train.bin", "test.bin"};
constexpr Paths kCifar100Python[] = {"train", "test"};
constexpr Paths kFood101Files[] = {"images", "meta/classes.txt"};
using Form = std::span<const Paths>;
constexpr Form kCifar10Forms[] = {kCifar10Binary, kCifar10Python};
constexpr Form kCifar100Forms[] = {kCifar100Binary, kCifar100Python};
constexpr Form kFood101Forms[] = {kFood101Files};

constexpr DatasetRow kDatasets[] = {
    {.name = DatasetName::digits,
     .spelling = "digits",
     .text = "1,797 real handwritten digits, 8 x 8, part of dstrain; needs no path",
     .modality = images,
     .needs_path = false,
     .keys = kStored},
    {.name = DatasetName::cifar10,
     .spelling = "cifar10",
     .text = "CIFAR-10, binary or python version or the Hub's parquet files; path is the folder",
     .modality = images,
     .keys = kCifar,
     .forms = kCifar10Forms,
     .parquet = true},
    {.name = DatasetName::cifar100,
     .spelling = "cifar100",
     .text = "CIFAR-100, binary or python version or the Hub's parquet files; path is the folder",
     .modality = images,
     .keys = kCifar,
     .forms = kCifar100Forms,
     .parquet = true},
    {.name = DatasetName::images,
     .spelling = "images",
     .text = "JPEG, PNG and WebP files as path/train/CLASS and path/test/CLASS, or path/CLASS, or "
             "in parquet files of the Hub",
     .modality = images,
     .keys = kFiles,
     .parquet = true},
    {.name = DatasetName::food101,
     .spelling = "food101",
     .text = "Food-101 as published, with images/ and meta/, or the Hub's parquet files",
     .modality = images,
     .keys = kFiles,
     .forms = kFood101Forms,
     .parquet = true},
    {.name = DatasetName::frames,
     .spelling = "frames",
     .text = "clips of JPEG, PNG or WebP frames as path/train/CLASS/CLIP and path/test/CLASS/CLIP",
     .modality = images,
     .keys = kClips},
    {.name = DatasetName::squad,
     .spelling = "squad",
     .text = "SQuAD v1.1 or v2; path is the folder with its JSON or parquet files",
     .modality = text,
     .keys = kText},
    {.name = DatasetName::metamathqa,
     .spelling = "metamathqa",
     .text = "MetaMathQA; path is its JSON or parquet file, or the folder",
     .modality = text,
     .keys = kText},
    {.name = DatasetName::jsonl,
     .spelling = "jsonl",
     .text =
         "one JSON object per line, or KEY.json and texts such as KEY.txt in tar files, put into "
         "words by prompt and response; path is the file, a folder with train.jsonl and "
         "test.jsonl, or tars as webdataset's",
     .modality = text,
     .keys = kJsonl},
    {.name = DatasetName::chat,
     .spelling = "chat",
     .text = "conversations in JSON, JSON Lines, parquet or KEY.json in tar files: messages, "
             "ShareGPT, Alpaca, or prompt and completion; path is the file, or a folder with train "
             "and maybe test, or of tars",
     .modality = text,
     .keys = kChat},
    {.name = DatasetName::random,
     .spelling = "random",
     .text = "random images, clips or tokens, as the model takes them, to measure speed; needs no "
             "path",
     .needs_path = false,
     .keys = kRandom},
    {.name = DatasetName::mixture,
     .spelling = "mixture",
     .text = "the data sets that data.mixture lists, text or images, each by its share",
     .needs_path = false,
     .keys = kMixture},
    {.name = DatasetName::tokens,
     .spelling = "tokens",
     .text = "tokens of text that dstrain data prepare has made; path is a file of them, or a "
             "folder of *.tokens",
     .modality = text,
     .keys = kTokens},
    {.name = DatasetName::webdataset,
     .spelling = "webdataset",
     .text = "images in tar files, as KEY.jpg (.png, .webp) and KEY.cls; path is their folder, "
             "with val- or test- beside train-, or train-{000000..000146}.tar",
     .modality = images,
     .keys = kFiles},
};

consteval bool datasets_in_order() {
  int place = 0;
  for (const DatasetRow& row : kDatasets) {
    if (static_cast<int>(row.name) != place++) return false;
  }
  return true;
}
static_assert(datasets_in_order());

constexpr auto kDatasetChoices = [] {
  std::array<Choice, std::size(kDatasets)> all;
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = {kDatasets[i].spelling, kDatasets[i].text, static_cast<int>(kDatasets[i].name)};
  return all;
}();

}  // namespace

std::span<const DatasetRow> datasets() { return kDatasets; }

const DatasetRow& dataset_row(DatasetName name) {
  return kDatasets[static_cast<std::size_t>(name)];
}

bool reads(const DatasetRow& row, std::string_view path) {
  return std::ranges::any_of(row.keys, [&](const DataKeys* keys) {
    return std::ranges::find(keys->paths, path) != keys->paths.end();
  });
}

bool may_be_of_hub(const DatasetRow& row) { return row.modality == text || row.parquet; }

int jpeg_lanes(const DataConfig& data) {
  constexpr int kMaxLanes = 4;
  if (data.decode != Decoder::gpu || !reads(dataset_row(data.name), "data.decode")) return 0;
  return std::min(data.workers, kMaxLanes);
}

bool is_generated(const DatasetRow& row) { return reads(row, "data.samples"); }

bool fits(const DatasetRow& row, Modality modality) {
  return !row.modality || *row.modality == modality;
}

bool takes_clips(const Recipe& recipe) {
  const ModelFamily* family = family_of(recipe.model.name);
  return family != nullptr && family->name == "cnn_lstm";
}

int frames_of(const Recipe& recipe) {
  return reads(dataset_row(recipe.data.name), "data.frames") && takes_clips(recipe)
             ? recipe.data.frames
             : 1;
}

std::string datasets_of(Modality modality) {
  std::vector<std::string_view> names;
  for (const DatasetRow& row : kDatasets) {
    if (fits(row, modality)) names.push_back(row.spelling);
  }
  return one_of(names);
}

std::vector<DataConfig> sets_of(const DataConfig& data) {
  if (data.name != DatasetName::mixture) return {data};
  std::vector<DataConfig> sets;
  for (const MemberConfig& member : data.mixture) {
    DataConfig& one = sets.emplace_back(data);
    one.name = member.name;
    one.path = member.path;
    one.label = member.label;
    one.subset = member.subset;
    one.loss = member.loss;
    one.prompt = member.prompt;
    one.response = member.response;
    one.template_file = member.template_file;
    one.template_args = member.template_args;
    one.chat_date = member.chat_date;
    one.split_turns = member.split_turns;
    one.too_long = member.too_long;
    one.bad_record = member.bad_record;
    one.test_share = member.test_share;
    one.mixture.clear();
  }
  return sets;
}

bool any_reads(const DataConfig& data, std::string_view path) {
  return std::ranges::any_of(
      sets_of(data), [&](const DataConfig& one) { return reads(dataset_row(one.name), path); });
}

bool is_member_key(std::string_view path) {
  return path == "data.name" || std::ranges::any_of(kMemberKeys, [&](const DataKeys* keys) {
           return std::ranges::find(keys->paths, path) != keys->paths.end();
         });
}

std::string member_path(std::size_t member, std::string_view path) {
  return fmt::format("data.mixture.{}{}", member, path.substr(path.find('.')));
}

std::vector<std::string> member_names(const DataConfig& data) {
  std::vector<std::string> names;
  if (data.name != DatasetName::mixture) return names;
  for (const MemberConfig& member : data.mixture) {
    const auto others = std::ranges::count(data.mixture, member.name, &MemberConfig::name);
    const std::string_view name = dataset_row(member.name).spelling;
    std::string words = others > 1 ? fmt::format("{} {}", name, member.path) : std::string(name);
    if (std::ranges::find(names, words) != names.end()) words += fmt::format(" ({})", names.size());
    names.push_back(std::move(words));
  }
  return names;
}

namespace {

/// Why the keys have no effect; empty: they have one.
std::string unread(const DataKeys& keys, const Recipe& recipe, Modality modality) {
  const DatasetRow& row = dataset_row(recipe.data.name);
  if (keys.modality && *keys.modality != modality)
    return fmt::format("model.name {} takes {}", recipe.model.name,
                       modality == images ? "images" : "text");
  const bool mixture = row.name == DatasetName::mixture;
  if (std::ranges::find(row.keys, &keys) == row.keys.end()) {
    // A data set that does not fit the model at all is an error of its own.
    if (keys.modality && !fits(row, modality)) return {};
    if (mixture && std::ranges::find(kMemberKeys, &keys) != std::end(kMemberKeys))
      return "each member of data.mixture says it";
    return fmt::format(fmt::runtime(keys.unread), row.spelling);
  }
  if (&keys == &kClipKeys && (is_generated(row) || mixture) && !takes_clips(recipe))
    return fmt::format("model.name {} takes single images", recipe.model.name);
  if (mixture && &keys != &kMixtureKeys && !recipe.data.mixture.empty() &&
      !any_reads(recipe.data, keys.paths.front()))
    return "no member of data.mixture reads it";
  return {};
}

}  // namespace

std::vector<Inactive> inactive_data_keys(const Recipe& recipe, Modality modality) {
  std::vector<Inactive> inactive;
  for (const DataKeys* keys : kAllKeys) {
    const std::string reason = unread(*keys, recipe, modality);
    if (reason.empty()) continue;
    for (const std::string_view path : keys->paths) inactive.push_back({std::string(path), reason});
  }
  if (recipe.data.name != DatasetName::mixture) return inactive;
  const std::vector<DataConfig> sets = sets_of(recipe.data);
  for (std::size_t i = 0; i < sets.size(); ++i) {
    Recipe alone = recipe;
    alone.data = sets[i];
    for (const Inactive& field : inactive_data_keys(alone, modality)) {
      if (is_member_key(field.path)) inactive.push_back({member_path(i, field.path), field.reason});
    }
  }
  if (std::ranges::any_of(recipe.data.mixture,
                          [](const MemberConfig& member) { return member.weight >= 0; }))
    inactive.push_back({"data.mixture_temperature", "the members have weights of their own"});
  return inactive;
}

std::span<const Choice> choices(DatasetName) { return kDatasetChoices; }

}  // namespace dstrain
