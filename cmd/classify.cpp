#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cmd/command.h"
#include "cmd/dtype_option.h"
#include "cmd/input_path.h"
#include "cmd/json_lines.h"
#include "cmd/number_option.h"
#include "engine/base/error.h"
#include "engine/base/output.h"
#include "engine/data/loader.h"
#include "engine/device/device.h"
#include "engine/infer/finished_model.h"
#include "engine/infer/image_classifier.h"
#include "engine/infer/image_preparation.h"
#include "engine/infer/unlabelled_images.h"
#include "engine/models/class_names.h"

namespace dstrain {
namespace {

using Clock = std::chrono::steady_clock;

struct ClassifyArguments {
  std::string model, adapter, output;
  std::vector<std::string> images;
  std::string dtype = "auto";
  bool average = false, on_cpu = false;
  int top = 5, batch = 0;
};

struct LikelyClass {
  std::int64_t label = 0;
  double probability = 0;
};

/// The likeliest classes by their scores; of equal ones the first comes first, as in an evaluation.
std::vector<LikelyClass> likeliest(std::span<const float> scores, std::size_t count) {
  std::vector<std::int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const auto score = [&](std::int64_t i) { return scores[static_cast<std::size_t>(i)]; };
  count = std::min(count, scores.size());
  std::ranges::partial_sort(order, order.begin() + static_cast<std::ptrdiff_t>(count),
                            [&](std::int64_t a, std::int64_t b) {
                              return score(a) != score(b) ? score(a) > score(b) : a < b;
                            });
  const auto largest = static_cast<double>(score(order.front()));
  double sum = 0;
  for (const float one : scores) sum += std::exp(static_cast<double>(one) - largest);
  std::vector<LikelyClass> classes;
  for (const std::int64_t label : std::span(order).first(count))
    classes.push_back({label, std::exp(static_cast<double>(score(label)) - largest) / sum});
  return classes;
}

/// The answers, in the order of the files.
class ClassLines {
 public:
  /// `readable`: text for people on standard output in the place of `out`.
  ClassLines(const Model& model, JsonLines out, bool readable)
      : names_(names_or_numbers(model.class_names, model.classes)),
        out_(std::move(out)),
        readable_(readable) {}

  void add(const std::string& file, const std::vector<LikelyClass>& classes) {
    ++whole_;
    if (readable_) {
      std::string text = file + ":";
      for (const LikelyClass& one : classes)
        text += fmt::format("{} {} {:.1f} %", &one == &classes.front() ? "" : ",", name(one),
                            100 * one.probability);
      return print_text(text + "\n");
    }
    nlohmann::ordered_json top = nlohmann::ordered_json::array();
    for (const LikelyClass& one : classes)
      top.push_back(
          {name(one), std::strtod(fmt::format("{:.6g}", one.probability).c_str(), nullptr)});
    out_.write({{"file", file}, {"top", std::move(top)}});
  }

  void add_unread(const std::string& file, const std::string& error) {
    ++unread_;
    print_error("{}\n", error);
    if (!readable_) out_.write({{"file", file}, {"error", error}});
  }

  [[nodiscard]] std::int64_t whole() const { return whole_; }
  [[nodiscard]] std::int64_t unread() const { return unread_; }
  [[nodiscard]] bool readable() const { return readable_; }

 private:
  [[nodiscard]] const std::string& name(const LikelyClass& one) const {
    return names_[static_cast<std::size_t>(one.label)];
  }

  std::vector<std::string> names_;  ///< of all classes
  JsonLines out_;
  bool readable_;
  std::int64_t whole_ = 0, unread_ = 0;
};

/// The answers of one batch.
void add_batch(ClassLines& lines, const UnlabelledImages& images, const HostBatch& batch,
               const at::Tensor& scores, const ClassifyArguments& arguments) {
  const auto* samples = batch.samples.const_data_ptr<std::int64_t>();
  const auto* weights = batch.weights.const_data_ptr<float>();
  const auto classes = static_cast<std::size_t>(scores.size(1));
  for (std::int64_t row = 0; row < scores.size(0); ++row) {
    if (samples[row] < 0) continue;
    const std::string& file = images.files()[static_cast<std::size_t>(samples[row])];
    if (weights[row] == 0) {
      lines.add_unread(file, images.error(samples[row]));
      continue;
    }
    const std::span own(scores.const_data_ptr<float>() + row * scores.size(1), classes);
    if (!std::ranges::all_of(own, [](float score) { return std::isfinite(score); }))
      throw Error(
          ErrorKind::data, "the scores of " + file + " are not finite",
          arguments.dtype == "fp32" ? "the model's weights are broken" : "try --dtype fp32");
    lines.add(file, likeliest(own, static_cast<std::size_t>(arguments.top)));
  }
}

int classify(const ClassifyArguments& arguments) {
  std::vector<std::string> files = find_image_files(arguments.images);
  JsonLines output(arguments.output, files);  // before the model is read, which takes long
  const DeviceFacts device = arguments.on_cpu ? cpu_device() : choose_device(0);
  const at::ScalarType dtype = dtype_of(arguments.dtype, device);
  FinishedModel found = open_finished_model(arguments.model, {.modality = Modality::images,
                                                              .adapter = arguments.adapter,
                                                              .average = arguments.average,
                                                              .device = device.device,
                                                              .dtype = dtype});
  Model& model = found.model;
  if (model.frames > 1)
    throw Error(
        ErrorKind::usage,
        fmt::format("{} takes clips of {} frames, not single images", found.what, model.frames),
        "`dstrain evaluate` measures it on clips");
  if (model.channels != 1 && model.channels != 3)
    throw Error(ErrorKind::usage, fmt::format("{} takes images of {} channels; files have 1 or 3",
                                              found.what, model.channels));
  const ImagePreparation preparation = preparation_of(found, arguments.model);
  const auto count = static_cast<std::int64_t>(files.size());
  constexpr std::int64_t kBatchOnGpu = 64, kBatchOnCpu = 16;
  const std::int64_t batch = std::min<std::int64_t>(arguments.batch > 0 ? arguments.batch
                                                    : device.is_cuda()  ? kBatchOnGpu
                                                                        : kBatchOnCpu,
                                                    count);
  print_error("{}: {} on {}, {} image{}; {}\n", found.what, c10::toString(dtype), device.name,
              count, count == 1 ? "" : "s", preparation.what);
  const bool readable = arguments.output.empty() && (count == 1 || ::isatty(STDOUT_FILENO) == 1);
  ClassLines lines(model, std::move(output), readable);
  const auto images =
      std::make_shared<UnlabelledImages>(std::move(files), preparation.resize, model.channels);
  constexpr unsigned kMaxWorkers = 8;
  const std::unique_ptr<Loader> loader =
      make_loader(images, {.global_batch = batch,
                           .micro_batch = batch,
                           .shuffle = false,
                           .pinned = device.is_cuda(),
                           .workers = static_cast<int>(
                               std::clamp(std::thread::hardware_concurrency(), 1U, kMaxWorkers)),
                           .last_step = steps_per_epoch(count, batch)});
  ImageClassifier classifier(model, device.device, dtype, preparation.normalize);
  const auto begin = Clock::now();
  const auto per_second = [&] {
    return static_cast<double>(lines.whole()) /
           std::max(std::chrono::duration<double>(Clock::now() - begin).count(), 1e-9);
  };
  auto shown = begin;
  for (std::int64_t done = 0; done < count; done += batch) {
    const HostBatch host = loader->next();
    add_batch(lines, *images, host, classifier.scores(host), arguments);
    if (readable || Clock::now() - shown < std::chrono::seconds(2)) continue;
    shown = Clock::now();
    print_error("{} of {} images, {:.0f} images/s\n", lines.whole() + lines.unread(), count,
                per_second());
  }
  if (count > 1)
    print_error("{} images in {:.1f} s, {:.1f} images/s\n", lines.whole(),
                std::chrono::duration<double>(Clock::now() - begin).count(), per_second());
  if (lines.unread() == 0) return 0;
  print_error("{} of {} files could not be read\n", lines.unread(), count);
  return exit_code(ErrorKind::data);
}

}  // namespace

Command add_classify(CLI::App& root) {
  auto options = std::make_shared<ClassifyArguments>();
  CLI::App* app = root.add_subcommand(
      "classify",
      "Say what images show: by a run, a checkpoint or a folder of a model of images.\n"
      "  dstrain classify runs/vit-... photo.jpg\n"
      "  dstrain classify models/vit-base-patch16-224 photos -o classes.jsonl");
  app->footer(
      "A line for each file, in order: {\"file\": \"..\", \"top\": [[\"otter\", 0.91], ..]}; for "
      "one "
      "file, or on a terminal, as text. A run prepares images as its evaluation does, a folder as "
      "its preprocessor_config.json says. What cannot be read is named, the others go on, and the "
      "exit code is 65.");
  app->add_option("model", options->model,
                  "Run directory (its best checkpoint, else its newest), checkpoint directory, or "
                  "folder of a model.")
      ->required()
      ->check(input_folder());
  app->add_option("images", options->images,
                  "JPEG, PNG and WebP files, and folders of them at any depth.")
      ->required();
  app->add_option("--top", options->top, "So many of the likeliest classes. Default 5.")
      ->check(number_in(1, 1 << 20));
  app->add_option("-o,--output", options->output,
                  "File of answers, a JSON object in each line. Default: standard output.");
  app->add_flag("--ema", options->average,
                "Of a run with ema.decay: the average of the weights over the steps.");
  app->add_option("--adapter", options->adapter, "Folder of a PEFT adapter for the model.")
      ->check(input_folder());
  app->add_option("--batch", options->batch, "Images at once; 0 (default): 64, on a CPU 16.")
      ->check(number_in(0, 1 << 16));
  add_dtype_option(*app, options->dtype);
  app->add_flag("--cpu", options->on_cpu, "Compute on the CPU although there is a GPU.");
  return {app, [options] { return classify(*options); }};
}

}  // namespace dstrain
