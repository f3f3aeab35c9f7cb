#include "engine/recipe/image_processor.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/recipe/config_file.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxSide = 16384;
const std::vector<double> kHalf = {0.5, 0.5, 0.5};
const std::vector<double> kClipMean = {0.48145466, 0.4578275, 0.40821073};
const std::vector<double> kClipStd = {0.26862954, 0.26130258, 0.27577711};

/// What a class of transformers does where its file says nothing.
struct ProcessorClass {
  std::string_view name;
  bool shortest_edge;  ///< a size that is one number is that of the shorter side
  bool center_crop;
  int size;
  int resample;
  const std::vector<double>& mean;
  const std::vector<double>& deviation;
};
const std::array<ProcessorClass, 5> kClasses = {{
    {"ViTImageProcessor", false, false, 224, 2, kHalf, kHalf},
    {"DeiTImageProcessor", false, true, 256, 3, kHalf, kHalf},
    {"BitImageProcessor", true, true, 224, 3, kClipMean, kClipStd},
    {"CLIPImageProcessor", true, true, 224, 3, kClipMean, kClipStd},
    {"SiglipImageProcessor", true, false, 224, 3, kHalf, kHalf},
}};
constexpr int kCropSize = 224;

/// Filters by the number that PIL gives them.
constexpr std::array<std::pair<int, Interpolation>, 3> kFilters = {
    {{1, Interpolation::lanczos}, {2, Interpolation::bilinear}, {3, Interpolation::bicubic}}};

void cut_suffix(std::string& name, std::string_view suffix) {
  if (name.ends_with(suffix)) name.resize(name.size() - suffix.size());
}

class Reader {
 public:
  Reader(ConfigFile file, const ProcessorClass& about) : file_(std::move(file)), class_(about) {}

  ImageProcessor read() {
    ImageProcessor found{.file = file_.path().string(), .resize = Fit::stretch, .normalize = {}};
    read_geometry(found);
    const double resample = file_.number("resample", class_.resample);
    bool known = false;
    for (const auto& [number, filter] : kFilters) {
      if (resample == number) found.interpolation = filter, known = true;
    }
    if (!known) file_.refuse("resample", "1 (lanczos), 2 (bilinear) or 3 (bicubic)");
    read_normalization(found.normalize);
    file_.raise(
        "give data.resize, data.resize_side, data.interpolation and data.normalize in the "
        "recipe; then this file is not read");
    return found;
  }

 private:
  /// Pixels, and whether they are those of the shorter side.
  struct Side {
    int pixels = 0;
    bool shorter = false;
  };

  Side read_side(const char* key, Side otherwise) {
    if (!file_.has(key)) return otherwise;
    const nlohmann::json& value = file_.json().at(key);
    const auto pixels = [&](const nlohmann::json& number) {
      const bool good = number.is_number_unsigned() && number.get<std::uint64_t>() >= 1 &&
                        number.get<std::uint64_t>() <= kMaxSide;
      return good ? number.get<int>() : 0;
    };
    Side side;
    if (value.is_object() && value.size() == 2 && value.contains("height") &&
        value.value("width", nlohmann::json()) == value["height"]) {
      side = {pixels(value["height"]), false};
    } else if (value.is_object() && value.size() == 1 && value.contains("shortest_edge")) {
      side = {pixels(value["shortest_edge"]), true};
    } else {
      side = {pixels(value), otherwise.shorter};
    }
    if (side.pixels > 0) return side;
    file_.refuse(key, fmt::format("a number from 1 to {}, {{height, width}} of one such number or "
                                  "{{shortest_edge}}",
                                  kMaxSide));
    return otherwise;
  }

  void read_geometry(ImageProcessor& found) {
    if (!file_.flag("do_resize", true)) file_.refuse("do_resize", "true");
    if (file_.flag("do_pad", false)) file_.refuse("do_pad", "false");
    if (file_.has("crop_pct")) file_.refuse("crop_pct", "null");
    // Without a crop a class's own size is that of both sides.
    const Side size = file_.has("size")
                          ? read_side("size", {class_.size, class_.shortest_edge})
                          : Side{class_.size, class_.shortest_edge && class_.center_crop};
    found.resize = size.shorter ? Fit::crop_floor : Fit::stretch;
    found.resize_side = found.image_size = size.pixels;
    if (file_.flag("do_center_crop", class_.center_crop)) {
      const Side crop = read_side("crop_size", {kCropSize, false});
      found.image_size = crop.pixels;
      if (crop.pixels > size.pixels) {
        file_.add_problem(fmt::format("{}: crop_size {} is larger than size {}",
                                      file_.path().string(), crop.pixels, size.pixels));
      }
    } else if (size.shorter) {
      file_.refuse("size", "{height, width} where do_center_crop is false: a ViT takes squares");
    }
  }

  std::vector<double> read_numbers(const char* key, const std::vector<double>& otherwise,
                                   bool positive) {
    if (!file_.has(key)) return otherwise;
    const nlohmann::json& value = file_.json().at(key);
    const nlohmann::json list = value.is_array() ? value : nlohmann::json::array({value});
    std::vector<double> numbers;
    for (const nlohmann::json& number : list) {
      if (!number.is_number() || (positive && !(number.get<double>() > 0))) break;
      numbers.push_back(number.get<double>());
    }
    if (numbers.size() == list.size() && (list.size() == 1 || list.size() == 3)) return numbers;
    file_.refuse(key, positive ? "one or three numbers above 0" : "one or three numbers");
    return otherwise;
  }

  void read_normalization(NormalizeConfig& normalize) {
    normalize.scale = 1;
    if (file_.flag("do_rescale", true)) {
      normalize.scale = file_.number("rescale_factor", NormalizeConfig().scale);
      if (!(normalize.scale > 0)) file_.refuse("rescale_factor", "above 0");
    }
    normalize.mean = {0};
    normalize.deviation = {1};
    if (!file_.flag("do_normalize", true)) return;
    normalize.mean = read_numbers("image_mean", class_.mean, false);
    normalize.deviation = read_numbers("image_std", class_.deviation, true);
    if (normalize.mean.size() != normalize.deviation.size())
      file_.refuse("image_std", "as long as image_mean");
  }

  ConfigFile file_;
  const ProcessorClass& class_;
};

/// The object that says it, in the order in which transformers looks.
std::optional<ConfigFile> find_file(const fs::path& weights) {
  if (const fs::path path = weights / "processor_config.json"; path_exists(path)) {
    ConfigFile file(path);
    if (file.has("image_processor") && file.json().at("image_processor").is_object())
      return ConfigFile::of_object(path, file.json().at("image_processor"));
  }
  const fs::path path = weights / "preprocessor_config.json";
  return path_exists(path) ? std::optional(ConfigFile(path)) : std::nullopt;
}

constexpr std::array<std::pair<std::string_view, Interpolation>, 3> kFilterNames = {
    {{"bilinear", Interpolation::bilinear},
     {"bicubic", Interpolation::bicubic},
     {"lanczos", Interpolation::lanczos}}};

std::vector<double> numbers_of(ConfigFile& file, const char* key,
                               const std::vector<double>& otherwise) {
  if (!file.has(key)) return otherwise;
  const nlohmann::json& list = file.json().at(key);
  std::vector<double> numbers;
  for (const nlohmann::json& number : list.is_array() ? list : nlohmann::json::array()) {
    if (number.is_number()) numbers.push_back(number.get<double>());
  }
  if (numbers.size() == list.size() && (numbers.size() == 1 || numbers.size() == 3)) return numbers;
  file.refuse(key, "one or three numbers");
  return otherwise;
}

/// timm resizes the shorter side to image size / crop_pct, or both sides (squash), and takes the
/// middle.
std::optional<ImageProcessor> read_timm(const fs::path& weights, int image_size) {
  const fs::path path = weights / "config.json";
  if (!path_exists(path)) return std::nullopt;
  std::optional<ConfigFile> file = pretrained_cfg(ConfigFile(path));
  if (!file || !file->has("mean")) return std::nullopt;
  ImageProcessor found{.file = path.string(), .resize = Fit::crop, .normalize = {}};
  if (image_size == 0 && file->has("input_size")) {
    const nlohmann::json& size = file->json().at("input_size");
    if (size.is_array() && size.size() == 3 && size[2].is_number_unsigned() &&
        size[2].get<std::uint64_t>() <= kMaxSide)
      image_size = size[2].get<int>();
  }
  const double crop = file->number_within("crop_pct", 0.01, 1, 0.875);
  found.image_size = image_size;
  found.resize_side = static_cast<int>(image_size / crop);
  const std::string mode = file->text("crop_mode", "center");
  if (mode == "squash") found.resize = Fit::stretch;
  if (mode != "squash" && mode != "center") file->refuse("crop_mode", "center or squash");
  const std::string filter = file->text("interpolation", "bicubic");
  const auto* known = std::ranges::find(kFilterNames, std::string_view(filter),
                                        &std::pair<std::string_view, Interpolation>::first);
  if (known == kFilterNames.end()) {
    file->refuse("interpolation", "bilinear, bicubic or lanczos");
  } else {
    found.interpolation = known->second;
  }
  found.normalize.mean = numbers_of(*file, "mean", found.normalize.mean);
  found.normalize.deviation = numbers_of(*file, "std", found.normalize.deviation);
  file->raise(
      "give data.resize, data.resize_side, data.interpolation and data.normalize in the recipe; "
      "then this file is not read");
  return found;
}

}  // namespace

std::optional<ImageProcessor> read_image_processor(const fs::path& weights, int image_size) {
  std::optional<ConfigFile> file = find_file(weights);
  if (!file) return read_timm(weights, image_size);
  const char* key =
      file->has("image_processor_type") ? "image_processor_type" : "feature_extractor_type";
  std::string type = file->text(key, std::string(kClasses[0].name));
  cut_suffix(type, "Fast");
  cut_suffix(type, "Pil");
  if (type.ends_with("FeatureExtractor")) {
    cut_suffix(type, "FeatureExtractor");
    type += "ImageProcessor";
  }
  for (const ProcessorClass& about : kClasses) {
    if (about.name == type) return Reader(std::move(*file), about).read();
  }
  file->refuse(key, "ViT-, DeiT-, Bit-, CLIP- or SiglipImageProcessor");
  file->raise(
      "give data.resize, data.resize_side, data.interpolation and data.normalize in the "
      "recipe; then this file is not read");
  return std::nullopt;
}

std::string image_processor_json(const DataConfig& data, int stored_side, int image_size,
                                 int channels) {
  const bool crops = stored_side > image_size;
  const bool stretches = data.resize == Fit::stretch || stored_side < image_size;
  const int side = std::max(stored_side, image_size);
  const auto square = [](int pixels) {
    return nlohmann::ordered_json{{"height", pixels}, {"width", pixels}};
  };
  const auto by_channel = [&](const std::vector<double>& values) {
    std::vector<double> all;
    for (int c = 0; c < channels; ++c)
      all.push_back(values.at(std::min(static_cast<std::size_t>(c), values.size() - 1)));
    return all;
  };
  int resample = 0;
  for (const auto& [number, filter] : kFilters) {
    if (filter == data.interpolation) resample = number;
  }
  // The class nearest to ViT's of those that prepare in this way.
  const char* type = !stretches ? "BitImageProcessor"
                     : crops    ? "DeiTImageProcessor"
                                : "ViTImageProcessor";
  nlohmann::ordered_json json = {
      {"image_processor_type", type},
      {"do_resize", true},
      {"size", stretches ? square(side) : nlohmann::ordered_json{{"shortest_edge", side}}},
      {"resample", resample},
      {"do_rescale", true},
      {"rescale_factor", data.normalize.scale},
      {"do_normalize", true},
      {"image_mean", by_channel(data.normalize.mean)},
      {"image_std", by_channel(data.normalize.deviation)},
  };
  json["do_center_crop"] = crops || !stretches;
  if (crops || !stretches) json["crop_size"] = square(image_size);
  if (channels == 3) json["do_convert_rgb"] = true;
  return json.dump(2) + "\n";
}

std::string with_pretrained_cfg(const std::string& config_json, const DataConfig& data,
                                int stored_side, int image_size, int channels) {
  nlohmann::json json = parse_json(config_json, "config.json");
  nlohmann::json& about = json["pretrained_cfg"];
  const auto by_channel = [&](const std::vector<double>& values) {
    std::vector<double> all;
    for (int c = 0; c < channels; ++c)
      all.push_back(values.at(std::min(static_cast<std::size_t>(c), values.size() - 1)));
    return all;
  };
  // timm knows pixels from 0 to 1.
  const double unit = data.normalize.scale * 255;
  std::vector<double> mean = by_channel(data.normalize.mean),
                      deviation = by_channel(data.normalize.deviation);
  for (std::vector<double>* values : {&mean, &deviation}) {
    for (double& value : *values) value /= unit;
  }
  about["mean"] = mean;
  about["std"] = deviation;
  const double side = std::max(stored_side, image_size);
  double crop = image_size / side;
  // Readers round down what they divide.
  while (std::floor(image_size / crop) < side) crop = std::nextafter(crop, 0.0);
  about["crop_pct"] = crop;
  about["crop_mode"] = data.resize == Fit::stretch ? "squash" : "center";
  for (const auto& [name, filter] : kFilterNames) {
    if (filter == data.interpolation) about["interpolation"] = name;
  }
  return json_text(json, 2) + "\n";
}

}  // namespace dstrain
