#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "engine/program/program.h"

namespace dstrain::test {

/// A model of `blocks` blocks of different sizes, for which every number is easily worked out by
/// hand.
inline ModelCost small_model_cost(int blocks) {
  ModelCost cost;
  for (int b = 0; b < blocks; ++b) {
    cost.groups.push_back({fmt::format("block{}", b), {1000 + 500 * b, 7}});
    cost.blocks.push_back({.name = fmt::format("block{}", b),
                           .groups = {b},
                           .forward_flops = 1e9 * (b + 1),
                           .saved_bytes = 1000 * (b + 1),
                           .boundary = {{{100 * (b + 1)}, 1}},
                           .forward_workspace = 10,
                           .backward_workspace = 300});
  }
  cost.batch_bytes = 5000;
  return cost;
}

/// Shapes like those of ViT-Base at 64 images of 224 pixels: stem, twelve layers, head.
inline ModelCost vit_like_model() {
  ModelCost cost;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> tensors, Flops flops,
                       Bytes saved, Bytes boundary) {
    cost.groups.push_back({name, std::move(tensors)});
    cost.blocks.push_back({.name = name,
                           .groups = {static_cast<int>(cost.blocks.size())},
                           .forward_flops = flops,
                           .saved_bytes = saved,
                           .boundary = {{{boundary}, 1}},
                           .forward_workspace = boundary,
                           .backward_workspace = 4 * boundary});
  };
  const Bytes tokens = Bytes{64} * 197 * 768 * 2;
  add("stem", {768 * 768, 768, 768, 197 * 768}, 14.8e9, 64 * 196 * 768 * 2, tokens);
  for (int layer = 0; layer < 12; ++layer) {
    add(fmt::format("layer.{}", layer),
        {768, 768, 2304 * 768, 2304, 768 * 768, 768, 768, 768, 3072 * 768, 3072, 3072 * 768, 768},
        188e9, 16 * tokens, tokens);
  }
  add("head", {768, 768, 76800, 100}, 0.01e9, tokens, 4);
  cost.batch_bytes = Bytes{64} * 3 * 224 * 224 * 3;
  return cost;
}

/// ProgramOptions::recompute of every block, or of none.
inline std::vector<bool> recomputed(bool wanted) { return std::vector<bool>(64, wanted); }

struct Case {
  Layout layout;
  ModelCost cost;
  ProgramOptions options;
};

inline Case make_case(int stage, int shard, int replicas, int blocks,
                      const ProgramOptions& options) {
  ModelCost cost = small_model_cost(blocks);
  const Mesh mesh(shard * replicas, {.data = replicas, .shard = shard});
  return {zero_layout(stage, mesh, cost, {}), cost, options};
}

/// Four blocks on 16 ranks, the second of which has collectives of every axis and pass inside.
inline Case make_exchanging_case(int stage, const ProgramOptions& options) {
  ModelCost cost = small_model_cost(4);
  cost.blocks[1].exchanges = {
      {.op = CommOp::all_gather, .axis = Axis::tensor, .bytes = 640, .width = 2},
      {.op = CommOp::all_reduce, .axis = CommAxis::batch, .bytes = 16, .pass = ExchangePass::train},
      {.op = CommOp::all_to_all, .axis = Axis::expert, .bytes = 320, .width = 2},
      {.op = CommOp::all_gather, .axis = Axis::sequence, .bytes = 1000},
      {.op = CommOp::reduce_scatter,
       .axis = Axis::tensor,
       .bytes = 640,
       .width = 2,
       .pass = ExchangePass::backward}};
  const Mesh mesh(16, {.data = 2, .shard = 2, .expert = 2, .tensor = 2});
  return {zero_layout(stage, mesh, cost, {}), cost, options};
}

inline std::vector<int> indices(const Program& program, ActionKind kind) {
  std::vector<int> list;
  for (std::size_t i = 0; i < program.actions.size(); ++i) {
    if (program.actions[i].kind == kind) list.push_back(static_cast<int>(i));
  }
  return list;
}
inline std::size_t count(const Program& program, ActionKind kind) {
  return indices(program, kind).size();
}

}  // namespace dstrain::test
