#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/units.h"
#include "engine/data/text/selection.h"
#include "engine/recipe/datasets.h"
#include "engine/train/session/agree.h"
#include "engine/train/session/reference_file.h"
#include "engine/train/session/session.h"

/// What a session knows of pairs of answers before its first step.
namespace dstrain {

void Session::open_references(const World& world, RankRecordFile& record, ProgressSink* progress) {
  // Random data is there to measure, and any number is a reference of it.
  if (!recipe_.preference.has_reference() || is_generated(dataset_row(recipe_.data.name))) return;
  record.enter(-1, "look for the reference");
  const std::string name = "reference/start";
  std::string start;
  if (world.rank == 0) {
    start = start_key(recipe_);
    world.store->set(name, start);
  } else {
    const CollectiveScope scope(&record, "agree", world.size);
    start = world.store->get(name, kPatience);
  }
  // The training split and the test split: pairs are no mixture.
  std::vector<std::shared_ptr<Dataset>> splits = {train_};
  splits.insert(splits.end(), tests_.begin(), tests_.end());
  for (const auto& dataset : splits) {
    auto* pairs = dynamic_cast<TextDataset*>(dataset.get());
    DSTRAIN_CHECK(pairs != nullptr && pairs->has_pairs(), "preference.loss without pairs");
    const auto file = reference_file(recipe_.data, pairs->pairs_key(), start);
    std::string problem;
    auto known = read_references(file, pairs->size(), problem);
    at::Tensor missing =
        at::zeros({1}, at::TensorOptions(at::kFloat).device(device_.device)).fill_(known ? 0 : 1);
    communicators_.at(kWorldChannel).all_reduce(missing, ReduceOp::max);
    if (missing.item<float>() > 0) {
      if (progress != nullptr && !problem.empty())
        progress->note(fmt::format("{} is made again: {}", file.string(), problem));
      record.enter(-1, "log-probabilities of the reference");
      const auto begin = std::chrono::steady_clock::now();
      std::vector<float> made = reference_of(dataset, progress);
      if (world.local_rank == 0 && !known) write_references(file, made);
      if (progress != nullptr)
        progress->note(fmt::format("reference: log-probabilities of {} pairs in {}, kept in {}",
                                   text::with_commas(pairs->size()),
                                   format_duration(seconds_since(begin)), file.string()));
      known = std::move(made);
    }
    pairs->take_references(*std::move(known));
  }
}

std::vector<float> Session::reference_of(const std::shared_ptr<Dataset>& pairs,
                                         ProgressSink* progress) {
  const LoaderOptions options = reading_options(pairs->size());
  if (device_.is_cuda() && strategy_->layout.pipeline_degree() > 1) {
    Feeder first(make_loader(pairs, options), feeder_options(false));
    executor_->rehearse_evaluation(first);
  }
  Feeder feeder(make_loader(pairs, options), feeder_options(false));
  const auto begin = std::chrono::steady_clock::now();
  const auto tell = [&](std::int64_t done) {
    if (progress == nullptr || done == options.last_step) return;
    const double share = static_cast<double>(done) / static_cast<double>(options.last_step);
    progress->progress(share,
                       fmt::format("reference: log-probabilities of {} pairs: {:.0f} %, {} left",
                                   text::with_commas(pairs->size()), 100 * share,
                                   format_duration(seconds_since(begin) * (1 - share) / share)));
  };
  const at::Tensor logps = executor_->answer_logps(feeder, options.last_step, tell);
  const at::Tensor all = at::zeros({pairs->size(), 2}, at::kFloat);
  for (std::int64_t step = 0; step < options.last_step; ++step) {
    const BatchRange range = batch_range(options, pairs->size(), step);
    if (range.count > 0)
      all.narrow(0, range.first, range.count)
          .copy_(logps.select(0, step).narrow(0, 0, range.count));
  }
  // Each pair is on one data rank, and on the stage of the head alone.
  at::Tensor shares = all.to(device_.device);
  communicators_.at(kWorldChannel).all_reduce(shares, ReduceOp::sum);
  all.copy_(shares);
  const auto* values = all.const_data_ptr<float>();
  std::vector<float> references(values, values + all.numel());
  if (!std::ranges::all_of(references, [](float logp) { return std::isfinite(logp); }))
    throw Error(ErrorKind::usage,
                "the weights that the run starts from give answers of the data no finite "
                "log-probability",
                "look at model.weights, or use precision.compute: bf16 or fp32");
  return references;
}

}  // namespace dstrain
