#include "engine/bench/variants.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "engine/base/error.h"

namespace dstrain::bench {
namespace {

struct VariantRow {
  std::string_view name;
  std::vector<std::string> overrides;
};

/// What a variant begins with.
const std::vector<VariantRow>& variant_bases() {
  static const std::vector<VariantRow> rows = {
      {"recipe", {}},
      {"ddp", {"parallel.zero.stage=0"}},
      {"zero1", {"parallel.zero.stage=1"}},
      {"zero2", {"parallel.zero.stage=2"}},
      {"zero3", {"parallel.zero.stage=3"}},
  };
  return rows;
}

/// What may be added to it.
const std::vector<VariantRow>& variant_additions() {
  static const std::vector<VariantRow> rows = {
      {"recompute", {"memory.recompute=blocks"}},
      {"fp8", {"precision.compute=fp8"}},
      {"bf16-states", {"precision.states=bf16"}},
      {"bf16-gradients", {"precision.gradients=bf16", "precision.reduce=bf16"}},
      {"offload", {"memory.offload.optimizer=pinned"}},
      {"pinned", {"memory.offload.optimizer=pinned"}},
      {"pageable", {"memory.offload.optimizer=pageable"}},
  };
  return rows;
}

const VariantRow* find_row(const std::vector<VariantRow>& rows, std::string_view name) {
  const auto found = std::ranges::find(rows, name, &VariantRow::name);
  return found == rows.end() ? nullptr : &*found;
}

void check_name(std::string_view name, std::string_view text) {
  const auto good = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.' || c == '+';
  };
  if (!name.empty() && name.size() <= 60 && std::ranges::all_of(name, good)) return;
  throw Error(ErrorKind::usage, fmt::format("--variant {}: '{}' is no name", text, name),
              "use letters, digits, '-', '_', '.' and '+': --variant wide=model.width=1024");
}

}  // namespace

std::string variant_names() {
  std::string text;
  for (const VariantRow& row : variant_bases())
    text += fmt::format("{}{}", text.empty() ? "" : ", ", row.name);
  for (std::size_t i = 0; i < variant_additions().size(); ++i)
    text += fmt::format("{}+{}", i == 0 ? "; " : ", ", variant_additions()[i].name);
  return text;
}

Variant named_variant(std::string_view name) {
  Variant variant{.name = std::string(name), .overrides = {}};
  for (std::size_t at = 0; at <= name.size();) {
    const bool first = at == 0;
    const std::size_t end = std::min(name.find('+', at), name.size());
    const std::string_view word = name.substr(at, end - at);
    at = end + 1;
    const VariantRow* row = find_row(first ? variant_bases() : variant_additions(), word);
    if (row == nullptr) {
      throw Error(ErrorKind::usage, fmt::format("--variants: there is no variant '{}'", name),
                  fmt::format("known are {}, or describe one: --variant NAME=KEY=VALUE,KEY=VALUE",
                              variant_names()));
    }
    variant.overrides.insert(variant.overrides.end(), row->overrides.begin(), row->overrides.end());
  }
  return variant;
}

Variant own_variant(std::string_view text) {
  const std::size_t equals = std::min(text.find('='), text.size());
  Variant variant{.name = std::string(text.substr(0, equals)), .overrides = {}};
  check_name(variant.name, text);
  std::string_view rest = text.substr(std::min(equals + 1, text.size()));
  int depth = 0;  // commas inside lists belong to a value
  std::string word;
  for (const char c : rest) {
    depth += c == '[' || c == '{' ? 1 : c == ']' || c == '}' ? -1 : 0;
    if (c == ',' && depth == 0) {
      variant.overrides.push_back(std::exchange(word, {}));
    } else {
      word += c;
    }
  }
  variant.overrides.push_back(word);
  for (const std::string& override : variant.overrides) {
    if (override.find('=') != std::string::npos && override.front() != '=') continue;
    throw Error(ErrorKind::usage,
                fmt::format("--variant {}: '{}' is not KEY=VALUE", text, override),
                "--variant wide=model.width=1024,model.heads=16");
  }
  return variant;
}

std::vector<Case> variant_cases(std::size_t recipes, const std::vector<int>& ranks,
                                const std::vector<Variant>& variants, bool weak, bool strong) {
  std::vector<Case> cases;
  for (std::size_t recipe = 0; recipe < recipes; ++recipe) {
    for (const int count : ranks) {
      for (const Variant& variant : variants) {
        cases.push_back({.recipe = recipe,
                         .ranks = count,
                         .name = variant.name,
                         .overrides = variant.overrides,
                         .weak = weak,
                         .strong = strong,
                         .first_ranks = weak || strong ? ranks.front() : 0});
      }
    }
  }
  return cases;
}

}  // namespace dstrain::bench
