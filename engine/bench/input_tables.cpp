#include "engine/bench/input_tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/error.h"
#include "engine/bench/tables.h"
#include "engine/recipe/choices.h"
#include "engine/recipe/datasets.h"
#include "engine/report/words.h"

namespace dstrain::bench {
namespace {

using Json = nlohmann::ordered_json;
using report::rate_words;
using report::share_words;

/// Below this share of the rate of one thread times their number, more threads do not pay.
constexpr double kScales = 0.7;
/// Share of its time from which the training thread limits the rate.
constexpr double kBusy = 0.8;

std::vector<std::pair<const char*, double>> figures(const InputRate& rate) {
  return {{"threads", rate.threads},
          {"loader_per_s", rate.loader_per_s},
          {"images_per_s", rate.images_per_s},
          {"core_s", rate.core_s()},
          {"read_s", rate.read_s},
          {"disk_s", rate.disk_s},
          {"decode_s", rate.decode_s},
          {"prepare_s", rate.prepare_s},
          {"copy_s", rate.copy_s},
          {"stored_bytes", rate.stored_bytes},
          {"decoded_bytes", rate.decoded_bytes}};
}

/// That of the largest number of threads for which there are cores.
const InputRate& fullest(const InputBench& bench) {
  const InputRate* best = &bench.rates.front();
  for (const InputRate& rate : bench.rates) {
    if (rate.threads <= bench.cores) best = &rate;
  }
  return *best;
}

/// Size of a packed file of squares of `side` pixels.
std::string packed_bytes(const InputBench& bench, double side) {
  const double bytes = static_cast<double>(bench.images) * side * side * 3;
  return report::bytes_words(bytes);
}

/// What would make resizing and the operations of data.augment shorter. `pixels`: what packed
/// pixels would save.
std::string resizing_advice(const DataConfig& data, const std::string& pixels) {
  using enum Augmentation;
  const auto has = [&](Augmentation wanted) {
    return std::ranges::find(data.augment, wanted) != data.augment.end();
  };
  std::vector<std::string> ways;
  if (has(trivial_augment) || has(rand_augment))
    ways.emplace_back("fewer operations in data.augment");
  if (!has(random_resized_crop))
    ways.emplace_back("random_resized_crop in data.augment, which resizes a part of the image");
  if (data.interpolation != Interpolation::bilinear)
    ways.emplace_back("data.interpolation: bilinear");
  if (data.pack == Pack::none) ways.push_back(pixels);
  if (ways.empty()) return "more threads, or a machine with more cores";
  return fmt::format("{}", fmt::join(ways, "; or "));
}

/// What would make the loader's slowest stage shorter.
std::string advice(const InputBench& bench, const InputRate& rate) {
  const DataConfig& data = bench.data;
  const int side = data.pack_side > 0     ? data.pack_side
                   : data.resize_side > 0 ? data.resize_side
                                          : static_cast<int>(bench.image_size * 8.0 / 7.0);
  const std::string pixels = fmt::format("data.pack: pixels needs no decoding (a file of about {})",
                                         packed_bytes(bench, side));
  if (rate.read_s >= std::max(rate.decode_s, rate.prepare_s)) {
    return data.pack == Pack::none ? "data.pack: jpeg reads all images from one memory-mapped file"
                                   : "the packed file is already read from memory";
  }
  if (rate.decode_s >= rate.prepare_s) {
    if (data.pack == Pack::pixels) return "the pixels are already packed";
    std::string text = data.jpeg_scaling ? "" : "data.jpeg_scaling: true decodes less; ";
    if (data.decode != Decoder::gpu)
      text += "data.decode: gpu takes the JPEG units of an A100, H100 or H200; ";
    if (data.pack == Pack::none)
      text += fmt::format("data.pack: jpeg decodes images of {} pixels; ", side);
    return text + pixels;
  }
  return resizing_advice(data, pixels);
}

/// Name and share of the loader's longest stage.
std::string longest_stage(const InputRate& rate) {
  const std::pair<const char*, double> stages[] = {
      {"reading", rate.read_s}, {"decoding", rate.decode_s}, {"resizing", rate.prepare_s}};
  const auto* longest = std::ranges::max_element(
      stages, [](const auto& a, const auto& b) { return a.second < b.second; });
  return fmt::format("{} ({} of the loader's time)", longest->first,
                     share_words(longest->second / rate.core_s()));
}

bool copy_limits(const InputRate& rate) { return rate.copy_s * rate.images_per_s > kBusy; }

std::string what_limits(const InputBench& bench, const InputRate& rate) {
  const std::string rate_text =
      fmt::format("{} images per second with {} thread{}", rate_words(rate.images_per_s),
                  rate.threads, rate.threads == 1 ? "" : "s");
  if (copy_limits(rate)) {
    return fmt::format(
        "{}: the training thread limits, which copies and normalises for {} of the "
        "time. More threads do not help.",
        rate_text, share_words(rate.copy_s * rate.images_per_s));
  }
  if (rate.disk_s > rate.core_s() && jpeg_lanes(bench.data) > 0) {
    return fmt::format(
        "{}: waiting for the GPU's JPEG units takes longest, {} an image. To change that: more "
        "threads, as long as the rate rises; then data.pack: jpeg.",
        rate_text, report::time_words(rate.disk_s));
  }
  if (rate.disk_s > rate.core_s()) {
    return fmt::format(
        "{}: waiting for the disk (or for a core, if other programs run) limits, "
        "{} an image. data.pack: jpeg reads fewer bytes in larger pieces.",
        rate_text, report::time_words(rate.disk_s));
  }
  return fmt::format("{}: {} takes longest. To change that: {}.", rate_text, longest_stage(rate),
                     advice(bench, rate));
}

}  // namespace

std::vector<std::string> input_sentences(const InputBench& bench) {
  DSTRAIN_CHECK(!bench.rates.empty(), "sentences need rates");
  const InputRate& rate = fullest(bench);
  std::vector<std::string> sentences = {what_limits(bench, rate)};
  const InputRate& first = bench.rates.front();
  const double speedup = rate.loader_per_s / first.loader_per_s;
  const double more = static_cast<double>(rate.threads) / first.threads;
  if (rate.threads > first.threads && speedup < kScales * more) {
    sentences.push_back(fmt::format(
        "{} threads are only {:.1f} times as fast as {}: other programs, hardware threads that "
        "share a core, or the bandwidth of memory hold them back.",
        rate.threads, speedup, first.threads));
  }
  if (bench.model_rate > 0) {
    const double cores = std::ceil(bench.model_rate * rate.core_s());
    const double workers = std::ceil(bench.model_rate * (rate.core_s() + rate.disk_s));
    sentences.push_back(fmt::format(
        "A model of {} images per second needs {:.0f} of these cores for its input ({} of a core "
        "each); this machine has {}. {}",
        rate_words(bench.model_rate), cores, report::time_words(rate.core_s()), bench.cores,
        rate.images_per_s >= bench.model_rate
            ? fmt::format("With {} threads the input keeps up: data.workers: {:.0f} is enough.",
                          rate.threads, workers)
            : fmt::format("With {} threads the input gives it {} of that.", rate.threads,
                          share_words(rate.images_per_s / bench.model_rate))));
  }
  return sentences;
}

report::Document input_document(const InputBench& bench) {
  report::Table table{
      .header = {"threads", "loader/s", "device/s", "per thread", "ms of a core", "read", "decode",
                 "resize", "disk ms", "copy ms", "kB stored", "kB decoded"},
      .rows = {}};
  for (const InputRate& rate : bench.rates) {
    table.rows.push_back(
        {number_cell(rate.threads, 0), number_cell(rate.loader_per_s, 0),
         number_cell(rate.images_per_s, 0), number_cell(rate.loader_per_s / rate.threads, 0),
         number_cell(rate.core_s() * 1e3, 3), number_cell(rate.read_s * 1e3, 3),
         number_cell(rate.decode_s * 1e3, 3), number_cell(rate.prepare_s * 1e3, 3),
         number_cell(rate.disk_s * 1e3, 3), number_cell(rate.copy_s * 1e3, 3),
         number_cell(rate.stored_bytes / 1e3, 1), number_cell(rate.decoded_bytes / 1e3, 1)});
  }
  const std::string stored = bench.data.pack == Pack::none
                                 ? "in files of their own"
                                 : fmt::format("packed as {}", spelling(bench.data.pack));
  const std::string by_units =
      jpeg_lanes(bench.data) > 0
          ? " With data.decode: gpu, decode is all that a core does beside the GPU's JPEG units, "
            "and disk is also what waits for these."
          : "";
  const std::string lead = fmt::format(
      "{} images of data.name {}, {}, for a model of {} pixels. loader/s: images per second in "
      "batches on the host, through the loader of a training run; device/s: on {}, normalised. "
      "Times are of one image: read, decode and resize (with the operations of data.augment) of a "
      "core, disk what reading waits, copy that of the training thread.{}",
      rate_words(static_cast<double>(bench.images)), spelling(bench.data.name), stored,
      bench.image_size, bench.device, by_units);
  return {.title = fmt::format("Input of {}", bench.recipe),
          .lead = lead,
          .sections = {{.title = "Rates by loader threads",
                        .blocks = {std::move(table), report::List{input_sentences(bench)}}}}};
}

std::string input_csv(const InputBench& bench) {
  report::Table table;
  for (const auto& [key, value] : figures({})) table.header.emplace_back(key);
  for (const InputRate& rate : bench.rates) {
    std::vector<report::Cell>& row = table.rows.emplace_back();
    for (const auto& [key, value] : figures(rate)) row.push_back({.text = "", .value = value});
  }
  return table_csv(table);
}

Json input_json(const InputBench& bench) {
  Json rows = Json::array();
  for (const InputRate& rate : bench.rates) {
    Json row;
    for (const auto& [key, value] : figures(rate)) row[key] = value;
    row["threads"] = rate.threads;
    rows.push_back(std::move(row));
  }
  return {{"recipe", bench.recipe},
          {"data", spelling(bench.data.name)},
          {"pack", spelling(bench.data.pack)},
          {"decode", spelling(bench.data.decode)},
          {"device", bench.device},
          {"images", bench.images},
          {"image_size", bench.image_size},
          {"cores", bench.cores},
          {"model_images_per_s", bench.model_rate > 0 ? Json(bench.model_rate) : Json()},
          {"rows", std::move(rows)},
          {"sentences", input_sentences(bench)}};
}

}  // namespace dstrain::bench
