#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/train/session/session.h"

/// Short runs of small models on ranks that are threads, and how they are compared.
namespace dstrain::test {

inline constexpr int kSmallSteps = 3;

/// A small model of that name in fp32 on random data, under `overrides`; "vit" and "cnn" are those
/// of the recipes that learn digits.
[[nodiscard]] Recipe small_recipe(const std::string& model,
                                  const std::vector<std::string>& overrides);

/// What rank 0 saw of a run; all ranks see the same losses.
struct Trace {
  std::vector<double> losses, norms;
  EvaluationTotals evaluation = {};  ///< after the last step, where the recipe evaluates
  std::map<std::string, std::vector<float>> start, weights;
};
[[nodiscard]] Trace small_run(const std::string& model, int ranks,
                              const std::vector<std::string>& overrides, bool rehearse = false);

/// Both lists, one after the other.
[[nodiscard]] std::vector<std::string> joined(std::vector<std::string> list,
                                              const std::vector<std::string>& more);

/// Numbers within what fp32's roundoff promises.
void check_near(const std::vector<double>& found, const std::vector<double>& expected);

/// Losses within what fp32's roundoff promises, norms within 1e-4, each tensor within 1e-4 of its
/// own size.
void check_near(const Trace& found, const Trace& expected);

}  // namespace dstrain::test
