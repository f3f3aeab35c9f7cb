#include "engine/train/execute/non_finite.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <tuple>

#include "engine/train/execute/executor.h"

namespace dstrain {
namespace {

using Where = NonFiniteSite::Where;

constexpr std::int64_t kFields = 6;  ///< of a site, as the ranks exchange it

/// Whether `a` is nearer to the cause than `b`: in the order of execution, which for gradients is
/// backward.
bool earlier(const NonFiniteSite& a, const NonFiniteSite& b) {
  const auto key = [](const NonFiniteSite& s) {
    return std::tuple(s.where, s.micro_batch, s.where == Where::gradient ? -s.block : s.block);
  };
  return key(a) < key(b);
}

bool all_finite(const at::Tensor& values) { return at::isfinite(values).all().item<bool>(); }

/// Looks at what this rank holds; `values` is its part of a group.
NonFiniteSite site_in_group(const StateStore& states, const ModelCost& cost, int group,
                            const at::Tensor& values, Where where) {
  const FlatGroup& flat = states.flat(group);
  const Range own = states.own_range(group);
  const auto bad = [&](std::size_t tensor) {
    const std::int64_t begin = flat.offset(tensor);
    const Range held = intersect(own, {begin, begin + flat.size(tensor)});
    return !held.empty() && !states.in_four_bits(group, tensor) &&
           !all_finite(values.narrow(0, held.begin - own.begin, held.size()));
  };
  std::size_t tensor = 0;
  while (tensor < flat.num_tensors() && !bad(tensor)) ++tensor;
  if (tensor == flat.num_tensors()) return {};
  NonFiniteSite site{.where = where, .group = group};
  site.tensor = static_cast<int>(tensor);
  const auto reads = [&](const BlockCost& block) {
    return std::ranges::find(block.groups, group) != block.groups.end();
  };
  site.block = static_cast<int>(std::ranges::find_if(cost.blocks, reads) - cost.blocks.begin());
  return site;
}

/// Collective.
NonFiniteSite first_of_all_ranks(const NonFiniteSite& own, Communicator& all,
                                 const c10::Device& device) {
  const at::Tensor host = at::zeros({all.size(), kFields}, at::kFloat);
  // Magnitudes beyond fp32, of fp64 or none, would make the sum infinite.
  const auto largest = std::min(own.largest_input, double{std::numeric_limits<float>::max()});
  float* row = host.mutable_data_ptr<float>() + all.rank() * kFields;
  for (const double field : {static_cast<double>(own.where), static_cast<double>(own.micro_batch),
                             static_cast<double>(own.block), static_cast<double>(own.group),
                             static_cast<double>(own.tensor), largest}) {
    *row++ = static_cast<float>(field);
  }
  at::Tensor sites = host.to(device);
  all.all_reduce(sites, ReduceOp::sum);
  synchronize(device);
  const at::Tensor found = sites.cpu();
  NonFiniteSite first;
  for (int rank = 0; rank < all.size(); ++rank) {
    const float* f = found.const_data_ptr<float>() + rank * kFields;
    NonFiniteSite site{.where = static_cast<Where>(static_cast<int>(f[0])),
                       .rank = rank,
                       .micro_batch = static_cast<int>(f[1]),
                       .block = static_cast<int>(f[2]),
                       .group = static_cast<int>(f[3]),
                       .tensor = static_cast<int>(f[4]),
                       .largest_input = f[5]};
    if (site.where == Where::gradient) site.rank = -1;
    if (earlier(site, first)) first = site;
  }
  return first;
}

}  // namespace

NonFiniteSite Executor::find_non_finite(BatchSource& source, std::int64_t step) {
  synchronize(options_.device);
  record_.enter(step, "look for values that are not finite");
  NonFiniteSite own;
  const auto consider = [&own](const NonFiniteSite& site) {
    if (earlier(site, own)) own = site;
  };
  for (int g = 0; g < static_cast<int>(states_.num_groups()); ++g) {
    consider(site_in_group(states_, cost_, g, states_.load_parameters(g), Where::parameter));
    if (states_.trainable(g) && !parks_state_)
      consider(site_in_group(states_, cost_, g, states_.own_gradient(g), Where::gradient));
  }
  // Every rank goes through all micro-batches, whatever it finds: others wait for its gathers.
  const int micro_batches = training_.program->micro_batches;
  set_dropout_seeds(step);
  synchronize(options_.device);
  gather_resident();
  for (int m = 0; m < micro_batches; ++m) {
    double largest = -1;
    bool found = false;
    blocks_.watch([&](int block, const Tensors& outputs) {
      if (found) return;
      double output = 0;
      for (const at::Tensor& tensor : outputs) {
        if (!tensor.is_floating_point() || tensor.numel() == 0) continue;
        found = found || !all_finite(tensor);
        if (!found) output = std::max(output, at::abs(tensor).max().item<double>());
      }
      if (found) {
        consider(
            {.where = Where::output, .micro_batch = m, .block = block, .largest_input = largest});
      }
      largest = output;
    });
    BlockContext context = context_;
    context.mode = Mode::recompute;
    context.dropout_seed = dropout_seed(m);
    run(evaluation_, source, {}, context);
    synchronize(options_.device);
  }
  blocks_.watch(nullptr);
  return first_of_all_ranks(own, communicator(kWorldChannel), options_.device);
}

}  // namespace dstrain
