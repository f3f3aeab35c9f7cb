#include <fmt/format.h>

#include <algorithm>

#include "engine/recipe/choices.h"
#include "engine/recipe/datasets.h"
#include "engine/recipe/families.h"
#include "engine/recipe/rule.h"

namespace dstrain {
namespace {

void normalize_by_channel(const Recipe& r, RuleContext& context) {
  const auto& n = r.data.normalize;
  const std::pair<std::string_view, std::size_t> lengths[] = {
      {"data.normalize.mean", n.mean.size()}, {"data.normalize.std", n.deviation.size()}};
  for (const auto& [path, length] : lengths) {
    if (length != 1 && length != 3) {
      context.error(path, fmt::format("{} numbers; images have 1 or 3 channels", length),
                    "give one for all channels, or one for each of three");
    }
  }
}

/// Images of a fixed size are enlarged on the device, which has one filter.
void fixed_sizes_are_bilinear(const Recipe& r, RuleContext& context) {
  const DatasetRow& row = dataset_row(r.data.name);
  if (r.data.interpolation == Interpolation::bilinear) return;
  if (row.modality != Modality::images || reads(row, "data.resize")) return;
  context.error("data.interpolation",
                fmt::format("{}, but images of data.name {} are enlarged bilinearly",
                            spelling(r.data.interpolation), spelling(r.data.name)),
                "use interpolation: bilinear, or store the images as files (data.name images)");
}

void square_holds_the_input(const Recipe& r, RuleContext& context) {
  const int side = r.data.resize_side, input = r.model.image_size;
  if (side == 0 || side >= input || !any_reads(r.data, "data.resize_side")) return;
  context.error("data.resize_side",
                fmt::format("{} pixels are less than model.image_size ({})", side, input),
                fmt::format("use {} or more", input));
}

bool augments_by(const Recipe& r, Augmentation wanted) {
  return std::ranges::find(r.data.augment, wanted) != r.data.augment.end();
}

/// Two of a kind would undo each other, or twice the work.
void one_augmentation_of_a_kind(const Recipe& r, RuleContext& context) {
  using enum Augmentation;
  const auto exclude = [&](Augmentation one, Augmentation two, std::string_view what) {
    if (!augments_by(r, one) || !augments_by(r, two)) return;
    context.error("data.augment",
                  fmt::format("{} and {} both {}", spelling(one), spelling(two), what),
                  fmt::format("take one of them out"));
  };
  exclude(random_crop, random_resized_crop, "cut a part of an image");
  exclude(trivial_augment, rand_augment, "draw operations");
}

void ranges_are_in_order(const Recipe& r, RuleContext& context) {
  const std::pair<std::string_view, const std::vector<double>*> ranges[] = {
      {"data.crop_scale", &r.data.crop_scale},
      {"data.crop_ratio", &r.data.crop_ratio},
      {"data.erase_area", &r.data.erase_area}};
  for (const auto& [path, range] : ranges) {
    if (range->size() != 2 || (*range)[0] <= (*range)[1]) continue;
    context.error(path, fmt::format("[{}, {}] goes down", (*range)[0], (*range)[1]),
                  fmt::format("write [{}, {}]", (*range)[1], (*range)[0]));
  }
}

void packs_hold_the_input(const Recipe& r, RuleContext& context) {
  const int side = r.data.pack_side, input = r.model.image_size;
  if (r.data.pack == Pack::none || side == 0 || side >= input) return;
  context.error("data.pack_side",
                fmt::format("{} pixels are less than model.image_size ({})", side, input),
                fmt::format("use {} or more", input));
}

void gpus_decode_jpeg(const Recipe& r, RuleContext& context) {
  if (r.data.decode != Decoder::gpu || r.data.pack != Pack::pixels ||
      !reads(dataset_row(r.data.name), "data.decode"))
    return;
  context.error("data.decode", "gpu: with data.pack: pixels nothing is decoded",
                "use data.decode: auto, or data.pack: jpeg or none");
}

/// Other models take a label per image.
void clips_have_their_model(const Recipe& r, RuleContext& context) {
  if (r.data.name != DatasetName::frames || family_of(r.model.name) == nullptr || takes_clips(r))
    return;
  context.error(
      "data.name",
      fmt::format("frames are clips of images, model.name {} takes single images", r.model.name),
      "use model.name: cnn-lstm, or data.name: images");
}

}  // namespace

std::span<const Rule> image_rules() {
  static const std::vector<Rule> all = {
      {normalize_by_channel, {"data.normalize.mean", "data.normalize.std"}},
      {fixed_sizes_are_bilinear, {"data.name", "data.interpolation"}, true},
      {square_holds_the_input, {"data.name", "data.resize_side", "model.image_size"}},
      {one_augmentation_of_a_kind, {"data.augment"}},
      {ranges_are_in_order, {"data.crop_scale", "data.crop_ratio", "data.erase_area"}},
      {gpus_decode_jpeg, {"data.name", "data.decode", "data.pack"}},
      {clips_have_their_model, {"data.name", "model.name"}, true},
      {packs_hold_the_input, {"data.pack", "data.pack_side", "model.image_size"}},
  };
  return all;
}

}  // namespace dstrain
