#include "engine/recipe/from_folder.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/model_folder.h"
#include "engine/recipe/config_file.h"
#include "engine/recipe/datasets.h"
#include "engine/recipe/families.h"
#include "engine/recipe/image_processor.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxPositions = 1 << 30;
constexpr std::uint64_t kMaxPixels = 16384;

class FolderReader {
 public:
  FolderReader(Recipe& recipe, const YamlReader& reader, Diagnostics& diagnostics)
      : recipe_(recipe), reader_(reader), diagnostics_(diagnostics) {}

  std::map<std::string, std::string, std::less<>> take() {
    if (!reader_.usable("model.name") || !reader_.usable("model.weights")) return {};
    const fs::path folder = recipe_.model.weights;
    try {
      if (folder.empty() || !path_exists(folder / "config.json")) {
        need_sizes();
        return {};
      }
      take_model(folder / "config.json");
      const ModelFamily* family = family_of(recipe_.model.name);
      if (family != nullptr && family->modality == Modality::images) take_preparation(folder);
    } catch (const Error& error) {
      report("model.weights", error.what(), error.hint());
    }
    return std::move(taken_);
  }

 private:
  void report(std::string_view path, std::string message, std::string hint) {
    diagnostics_.error(reader_.place(path), path, std::move(message), std::move(hint));
  }

  /// Fills a field that the recipe does not give.
  template <class T>
  void fill(const std::string& path, T& field, const T& value, const std::string& file) {
    if (reader_.given(path) != nullptr) return;
    field = value;
    taken_[path] = file;
  }

  /// Without a folder the name or the recipe must say the sizes.
  void need_sizes() {
    ModelConfig& model = recipe_.model;
    if (model.name.empty()) {
      if (model.weights.empty()) {
        report("model.name", "missing, and there is no model.weights to take it from",
               "name a model, or give the folder of one as model.weights");
      } else {
        const std::string hint = hint_for_model_folder(model.weights);
        report("model.weights",
               fmt::format("{} has no config.json to take model.name and the sizes from",
                           shown_path(model.weights)),
               !hint.empty() ? hint
                             : "name a folder from Hugging Face or `dstrain checkpoint export`, or "
                               "give model.name");
      }
      return;
    }
    if (const std::string hint = hint_for_model_folder(model.weights);
        !hint.empty() && path_kind(model.weights) == PathKind::folder) {
      report("model.weights", fmt::format("{} is no model", shown_path(model.weights)), hint);
      return;
    }
    const ModelFamily* family = family_of_type(model.name);
    if (family == nullptr || family->by_name || published_model(model.name) != nullptr) return;
    for (const ModelSize& size : family->sizes) {
      const std::string path = fmt::format("model.{}", size.key);
      if (size.optional || model.*size.member != 0 || !reader_.usable(path)) continue;
      report(path, fmt::format("missing; model.name {} says no sizes", model.name),
             "give it, or the folder of a model as model.weights");
    }
  }

  void take_model(const fs::path& path) {
    ConfigFile file(path);
    const std::string source = path.string();
    const std::string type = file.text("model_type", "");
    if (type.empty() && file.has("architecture")) {
      take_architecture(file);
      return;
    }
    const ModelFamily* family = family_of_type(type);
    if (family == nullptr || family->by_name) {
      throw Error(ErrorKind::data, fmt::format("{}: model_type is '{}'", source, type),
                  fmt::format("it must be {}", family_names()));
    }
    ModelConfig& model = recipe_.model;
    if (recipe_.experts.upcycle && reader_.usable("experts.upcycle")) {
      // The folder's MLPs become experts: the model has the sizes of its own name.
      if (model.name.empty()) {
        report("model.name", "missing; experts.upcycle takes only weights from model.weights",
               "name the mixture of experts, such as qwen2.5-3b-moe");
        return;
      }
      need_sizes();
      compare_positions(file, *family);
      return;
    }
    if (model.name.empty()) {
      model.name = type;
      taken_["model.name"] = source;
    } else if (family_of(model.name) != family) {
      report("model.name",
             fmt::format("{} is a {}, but {} has model_type {}", model.name,
                         family_of(model.name)->name, source, type),
             "leave the name out, or name another folder as model.weights");
      return;
    }
    ConfigFile sizes = file.of_family(*family);
    for (const ModelSize& size : family->sizes) {
      if (size.image && family->resizes_positions && take_other_image(path.parent_path())) continue;
      take_size(sizes, size);
    }
    compare_positions(sizes, *family);
    for (const std::string& problem : sizes.problems())
      report("model.weights", problem, "change config.json, or choose other weights");
  }

  /// As timm writes it: the architecture's name says all but image, classes and batch norms.
  void take_architecture(ConfigFile& file) {
    const std::string source = file.path().string(), architecture = file.text("architecture", "");
    const auto [found, norm] = timm_model_in(file);
    if (found == nullptr) {
      throw Error(ErrorKind::data, fmt::format("{}: architecture is '{}'", source, architecture),
                  "choose weights of a model that dstrain has: `dstrain recipe check` lists the "
                  "names of model.name");
    }
    ModelConfig& model = recipe_.model;
    const PublishedModel* published = model.name.empty() ? found : published_model(model.name);
    if (model.name.empty()) {
      model.name = found->name;
      taken_["model.name"] = source;
    } else if (published == nullptr || architecture_of(*published) != architecture_of(*found)) {
      report("model.name",
             fmt::format("{}, but {} has architecture {}", model.name, source, architecture),
             "leave the name out, or name another folder as model.weights");
      return;
    }
    for (const std::string& problem : file.problems())
      report("model.weights", problem, "change config.json, or choose other weights");
    if (published->batch_norm && norm.eps != published->norm.eps)
      fill("batch_norm.eps", recipe_.batch_norm.eps, norm.eps, source);
    if (published->batch_norm && norm.momentum != published->norm.momentum)
      fill("batch_norm.momentum", recipe_.batch_norm.momentum, norm.momentum, source);
    const std::optional<ConfigFile> training = pretrained_cfg(file);
    if (!training || !training->has("input_size")) return;
    const nlohmann::json& size = training->json().at("input_size");
    const auto number = [&](std::size_t i) {
      return size.is_array() && size.size() == 3 && size[i].is_number_unsigned()
                 ? size[i].get<std::uint64_t>()
                 : 0;
    };
    const auto take = [&](const std::string& path, int& field, std::uint64_t in_file) {
      if (field != 0 || in_file < 1 || in_file > kMaxPixels || !reader_.usable(path)) return;
      field = static_cast<int>(in_file);
      taken_[path] = source;
    };
    take("model.channels", model.channels, number(0));
    take("model.image_size", model.image_size, number(2));
  }

  /// The recipe's image size, else that of the folder's image processor, where a model takes
  /// images of another size than its positions are for; false: neither says one.
  bool take_other_image(const fs::path& folder) {
    int& in_recipe = recipe_.model.image_size;
    if (in_recipe != 0 || !reader_.usable("model.image_size")) return true;
    const std::optional<ImageProcessor> found = read_image_processor(folder);
    if (!found) return false;
    in_recipe = found->image_size;
    taken_["model.image_size"] = found->file;
    return true;
  }

  void take_size(ConfigFile& file, const ModelSize& size) {
    const auto in_file = static_cast<int>(file.size(file.key_of(size), size.max, 0, size.image));
    int& in_recipe = recipe_.model.*size.member;
    const std::string path = fmt::format("model.{}", size.key);
    if (in_file == 0 || !reader_.usable(path)) return;
    if (in_recipe == 0) {
      in_recipe = in_file;
      taken_[path] = file.path().string();
    } else if (in_recipe != in_file) {
      report(path, size_differs(size, in_recipe, file.path().string(), in_file),
             "leave the sizes out of the recipe: the weights have their own");
    }
  }

  /// Rotary and learnt positions end where the model's training did; those of BLOOM (ALiBi) have no
  /// end.
  void compare_positions(ConfigFile& file, const ModelFamily& family) {
    if (family.positions == nullptr || !reader_.usable("data.sequence")) return;
    const std::int64_t positions = file.size(family.positions, kMaxPositions, 0);
    const int sequence = recipe_.data.sequence;
    if (positions == 0 || sequence <= positions) return;
    const std::string text = fmt::format("{} tokens, but {} has {} {}", sequence,
                                         file.path().string(), family.positions, positions);
    if (!family.rotary && !family.learnt_positions) {
      diagnostics_.warning(reader_.place("data.sequence"), "data.sequence", text,
                           fmt::format("{} goes on beyond the length that it was trained with, "
                                       "but not as well",
                                       family.title));
    } else {
      report("data.sequence", text, fmt::format("use at most {}", positions));
    }
  }

  void take_preparation(const fs::path& folder) {
    const bool files = any_reads(recipe_.data, "data.resize");
    const bool own_size = !files || reader_.given("data.resize") != nullptr ||
                          reader_.given("data.resize_side") != nullptr;
    const auto given = [&](std::string_view path) { return reader_.given(path) != nullptr; };
    if (own_size && given("data.interpolation") && given("data.normalize.scale") &&
        given("data.normalize.mean") && given("data.normalize.std")) {
      return;
    }
    const std::optional<ImageProcessor> found =
        read_image_processor(folder, recipe_.model.image_size);
    if (!found) return;
    DataConfig& data = recipe_.data;
    fill("data.normalize.scale", data.normalize.scale, found->normalize.scale, found->file);
    fill("data.normalize.mean", data.normalize.mean, found->normalize.mean, found->file);
    fill("data.normalize.std", data.normalize.deviation, found->normalize.deviation, found->file);
    if (any_reads(recipe_.data, "data.interpolation"))
      fill("data.interpolation", data.interpolation, found->interpolation, found->file);
    if (!files) return;
    fill("data.jpeg_scaling", data.jpeg_scaling, false, found->file);
    if (own_size) return;
    fill("data.resize", data.resize, found->resize, found->file);
    fill("data.resize_side", data.resize_side, found->resize_side, found->file);
    const int image_size = recipe_.model.image_size;
    if (image_size == 0 || image_size == found->image_size) return;
    report("model.weights",
           fmt::format("{} makes images of {} pixels, but the model takes {}", found->file,
                       found->image_size, image_size),
           "give data.resize and data.resize_side in the recipe");
  }

  Recipe& recipe_;
  const YamlReader& reader_;
  Diagnostics& diagnostics_;
  std::map<std::string, std::string, std::less<>> taken_;
};

}  // namespace

std::map<std::string, std::string, std::less<>> take_from_folder(Recipe& recipe,
                                                                 const YamlReader& reader,
                                                                 Diagnostics& diagnostics) {
  return FolderReader(recipe, reader, diagnostics).take();
}

}  // namespace dstrain
