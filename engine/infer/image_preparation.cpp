#include "engine/infer/image_preparation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "engine/base/error.h"
#include "engine/data/dataset.h"
#include "engine/models/family.h"
#include "engine/recipe/datasets.h"
#include "engine/recipe/image_processor.h"

namespace dstrain {
namespace {

ImagePreparation of_run(const DataConfig& data, int image_size) {
  const int side = stored_shape(data, image_size).height;
  // Images of a data set that has one size are not resized; files of another size are made fit.
  const bool squares = reads(dataset_row(data.name), "data.resize");
  return {.resize = {.fit = squares ? data.resize : Fit::stretch,
                     .side = side,
                     .input = std::min(side, image_size),
                     .filter = squares ? data.interpolation : Interpolation::bilinear},
          .normalize = data.normalize,
          .what = "prepared as in the run's evaluation"};
}

std::optional<ImageProcessor> processor_of(const std::filesystem::path& folder, int image_size) {
  try {
    return read_image_processor(folder, image_size);
  } catch (const Error& error) {
    throw Error(error.kind(), error.what(),
                "change the file, or classify with the run that trained the model");
  }
}

ImagePreparation of_folder(const Model& model, const std::filesystem::path& folder) {
  const int size = model.image_size;
  if (const std::optional<ImageProcessor> found = processor_of(folder, size)) {
    if (found->image_size != size)
      throw Error(ErrorKind::data,
                  fmt::format("{} makes images of {} pixels, but the model takes {}", found->file,
                              found->image_size, size),
                  "change the size in that file");
    return {.resize = {.fit = found->resize,
                       .side = found->resize_side,
                       .input = std::min(found->resize_side, size),
                       .filter = found->interpolation},
            .normalize = found->normalize,
            .what = "prepared by " + found->file};
  }
  if (!model.family->recipe().by_name)
    return {.resize = {.fit = Fit::stretch, .side = size, .input = size},
            .normalize = {.mean = {0.5}, .deviation = {0.5}},
            .what = fmt::format("no preprocessor_config.json: images become {0} x {0} pixels, mean "
                                "and deviation 0.5, as is usual for {1}",
                                size, model.family->recipe().title)};
  // As torchvision evaluates: 256 for 224.
  const int side = static_cast<int>(std::lround(size * 8.0 / 7.0));
  return {.resize = {.fit = Fit::crop, .side = side, .input = size},
          .normalize = {},
          .what = fmt::format("nothing says how its images were prepared: shorter side {}, the "
                              "middle {} x {}, ImageNet's mean and deviation, as is usual for {}",
                              side, size, size, model.family->recipe().title)};
}

}  // namespace

ImagePreparation preparation_of(const FinishedModel& model, const std::filesystem::path& folder) {
  return model.recipe ? of_run(model.recipe->data, model.model.image_size)
                      : of_folder(model.model, folder);
}

}  // namespace dstrain
