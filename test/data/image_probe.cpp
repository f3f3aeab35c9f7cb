#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/data/dataset.h"
#include "engine/data/images/image_decode.h"
#include "engine/data/images/image_resize.h"
#include "engine/data/text/progress_sink.h"
#include "engine/kernels/image/operations.h"
#include "engine/recipe/datasets.h"

/// Answers image_equality.py and image_sets.py: a line of words in, maybe with pixels behind it,
/// pixels out.
namespace dstrain {
namespace {

using Pixels = std::vector<std::uint8_t>;

Pixels square(int side) {
  return Pixels(static_cast<std::size_t>(side) * static_cast<std::size_t>(side) * 3);
}

Interpolation filter_named(const std::string& name) {
  return name == "bicubic" ? Interpolation::bicubic : Interpolation::bilinear;
}

/// evaluate FILE SIDE INPUT FILTER: resize and centre crop.
Pixels evaluate(std::istream& words) {
  std::string file, filter;
  SquareResize how{.fit = Fit::crop};
  words >> file >> how.side >> how.input >> filter;
  how.filter = filter_named(filter);
  Pixels pixels = square(how.input);
  resize_to_middle(decode_image(read_file(file), kFullSize, file), how, pixels);
  return pixels;
}

/// window FILE LEFT TOP WIDTH HEIGHT SIDE FILTER: a part of it, resized.
Pixels window(std::istream& words) {
  std::string file, filter;
  ImageWindow part;
  int side = 0;
  words >> file >> part.left >> part.top >> part.width >> part.height >> side >> filter;
  const ImagePart decoded =
      decode_part(read_file(file), {.window = [&](int, int) { return part; }}, file);
  Pixels pixels = square(side);
  resize_part({decoded.image.pixels, decoded.image.width, decoded.image.height}, decoded, side,
              filter_named(filter), pixels);
  return pixels;
}

/// operate NUMBER MAGNITUDE WIDTH HEIGHT CHANNELS, and the pixels.
Pixels operate(std::istream& words) {
  int number = 0, width = 0, height = 0, channels = 0;
  double magnitude = 0;
  words >> number >> magnitude >> width >> height >> channels;
  Pixels pixels(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) *
                static_cast<std::size_t>(channels));
  std::cin.read(reinterpret_cast<char*>(pixels.data()), std::ssize(pixels));
  apply_operation(static_cast<ImageOperation>(number), magnitude, pixels, width, height, channels);
  return pixels;
}

/// magnitudes WIDTH HEIGHT: doubles of both spaces, all operations and strengths.
Pixels magnitudes(std::istream& words) {
  int width = 0, height = 0;
  words >> width >> height;
  std::vector<double> all;
  for (const OperationSpace space :
       {OperationSpace::rand_augment, OperationSpace::trivial_augment}) {
    for (int number = 0; number < kNumImageOperations; ++number) {
      for (int level = 0; level < kMagnitudes; ++level)
        all.push_back(
            magnitude_of(space, static_cast<ImageOperation>(number), level, width, height));
    }
  }
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(all.data());
  return {bytes, bytes + all.size() * sizeof(double)};
}

/// set NAME PATH SPLIT LABEL SUBSET SEED SIDE CACHE, "-" for none: all samples of a data set, its
/// images stored with SIDE. A line of JSON, then label (a byte) and pixels of each; or the error.
Pixels set_or_error(std::istream& words) {
  std::string name, split, label, notes;
  DataConfig data;
  std::int64_t seed = 0;
  int side = 0;
  words >> name >> data.path >> split >> label >> data.subset >> seed >> side >> data.cache;
  for (const DatasetRow& row : datasets()) {
    if (row.spelling == name) data.name = row.name;
  }
  if (label != "-") data.label = label;
  data.resize_side = side;
  struct Notes final : ProgressSink {
    void note(const std::string& text) override { lines.push_back(text); }
    void progress(double, const std::string&) override {}
    nlohmann::json lines = nlohmann::json::array();
  } heard;
  const auto images =
      open_images(data, split == "train" ? Split::train : Split::test, side, seed, &heard);
  const nlohmann::json head = {{"code", 0},
                               {"samples", images->size()},
                               {"classes", images->classes()},
                               {"names", images->class_names()},
                               {"side", images->shape().height},
                               {"bytes", images->shape().bytes()},
                               {"planned", dataset_facts(data, side).train_size},
                               {"notes", heard.lines}};
  const std::string line = head.dump() + "\n";
  Pixels all(line.begin(), line.end());
  Pixels pixels(static_cast<std::size_t>(images->shape().bytes()));
  for (std::int64_t i = 0; i < images->size(); ++i) {
    all.push_back(static_cast<std::uint8_t>(images->read(i, pixels)));
    all.insert(all.end(), pixels.begin(), pixels.end());
  }
  return all;
}

Pixels set(std::istream& words) {
  try {
    return set_or_error(words);
  } catch (const Error& error) {
    const nlohmann::json head = {{"code", exit_code(error.kind())},
                                 {"samples", 0},
                                 {"error", fmt::format("{}\n{}", error.what(), error.hint())}};
    const std::string line = head.dump() + "\n";
    return {line.begin(), line.end()};
  }
}

Pixels answer(const std::string& line) {
  std::istringstream words(line);
  std::string what;
  words >> what;
  if (what == "evaluate") return evaluate(words);
  if (what == "window") return window(words);
  if (what == "operate") return operate(words);
  if (what == "magnitudes") return magnitudes(words);
  if (what == "set") return set(words);
  throw Error(ErrorKind::usage, "no such question: " + line);
}

}  // namespace
}  // namespace dstrain

int main() {
  try {
    for (std::string line; std::getline(std::cin, line);) {
      const auto pixels = dstrain::answer(line);
      std::fwrite(pixels.data(), 1, pixels.size(), stdout);
      std::fflush(stdout);
    }
    return 0;
  } catch (const dstrain::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return exit_code(error.kind());
  }
}
