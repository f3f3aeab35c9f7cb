#include "engine/checkpoint/foreign_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/base/printable.h"
#include "engine/mesh/pieces.h"
#include "engine/weights/torch_weights.h"

namespace dstrain {
namespace {

using Kind = PickleValue::Kind;

[[noreturn]] void fail(const fs::path& file, const std::string& what) {
  throw Error(ErrorKind::data, fmt::format("{}: {}", file.string(), what),
              "look with `dstrain checkpoint inspect`");
}

/// A number, or nothing.
std::optional<double> number_of(const PickleValue* value) {
  if (value == nullptr) return std::nullopt;
  if (value->is(Kind::real)) return value->real;
  if (value->is(Kind::integer)) return static_cast<double>(value->integer);
  return std::nullopt;
}

}  // namespace

TorchFile open_torch(const fs::path& path) {
  auto file = std::make_shared<const TorchZip>(path);
  const std::string& written_as = file->archive();
  constexpr const char* kStream = "archive";  // the name of what went through a stream
  if (written_as.empty() || written_as == path.stem() || written_as == kStream) return file;
  const fs::path other = path.parent_path() / (written_as + path.extension().string());
  if (!path_exists(other)) return file;
  throw Error(ErrorKind::data,
              fmt::format("{} was written as {} and renamed, or copied over: torch.save calls its "
                          "archive '{}'",
                          path.string(), other.filename().string(), shown(written_as)),
              "files of the folder changed places; copy the folder again");
}

const PickleValue* optional_member(const PickleValue& value, std::string_view key) {
  const PickleValue* found = value.find(key);
  return found == nullptr || found->is(Kind::none) ? nullptr : found;
}

const PickleValue& member(const fs::path& file, const PickleValue& value, std::string_view key) {
  const PickleValue* found = optional_member(value, key);
  if (found == nullptr) fail(file, fmt::format("no '{}' is there", key));
  return *found;
}

const PickleValue& member_of(const fs::path& file, const PickleValue& value, std::string_view key,
                             Kind kind) {
  const PickleValue& found = member(file, value, key);
  if (!found.is(kind))
    fail(file, fmt::format("'{}' is {}, not {}", key, kind_text(found.kind), kind_text(kind)));
  return found;
}

std::int64_t integer_member(const fs::path& file, const PickleValue& value, std::string_view key) {
  const std::int64_t found = member_of(file, value, key, Kind::integer).integer;
  if (found < 0) fail(file, fmt::format("'{}' is {}", key, found));
  return found;
}

std::int64_t count_of(const TorchFile& file, const PickleValue& value, const std::string& what) {
  double count = -1;
  if (value.is(Kind::tensor)) {
    const ForeignTensor tensor = tensor_of(file, value, what);
    float number = -1;
    if (tensor.numel() == 1) tensor.read(0, {&number, 1});
    count = number;
  } else {
    count = number_of(&value).value_or(-1);
  }
  constexpr double kMax = 1e15;
  if (!(count >= 0 && count < kMax) || count != std::floor(count))
    fail(file->path(), fmt::format("{} is no whole number", what));
  return static_cast<std::int64_t>(count);
}

ForeignTensor tensor_of(const TorchFile& file, const PickleValue& value, const std::string& what) {
  if (!value.is(Kind::tensor))
    fail(file->path(), fmt::format("'{}' is {}, not a tensor", what, kind_text(value.kind)));
  return {file, *value.tensor};
}

std::vector<std::int64_t> shape_of(const fs::path& file, const PickleValue& value,
                                   const std::string& name) {
  std::vector<std::int64_t> shape;
  bool numbers = value.is(Kind::tuple) || value.is(Kind::list);
  for (const PickleValue* item : value.items) {
    numbers = numbers && item->is(Kind::integer) && item->integer >= 0;
    shape.push_back(item->integer);
  }
  if (!numbers || num_elements(shape) < 0) fail(file, fmt::format("'{}' has no shape", name));
  return shape;
}

std::vector<std::pair<std::string, const PickleValue*>> items_of(const fs::path& file,
                                                                 const PickleValue& dict,
                                                                 const std::string& what) {
  if (!dict.is(Kind::dict))
    fail(file, fmt::format("'{}' is {}, not a dict", what, kind_text(dict.kind)));
  std::vector<std::pair<std::string, const PickleValue*>> items;
  for (std::size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    const PickleValue& key = *dict.items[i];
    if (key.is(Kind::text)) items.emplace_back(key.text, dict.items[i + 1]);
    if (key.is(Kind::integer))
      items.emplace_back(fmt::format("{}", key.integer), dict.items[i + 1]);
  }
  return items;
}

ForeignCheckpoint::Tensors tensors_of(const TorchFile& file, const PickleValue& dict) {
  ForeignCheckpoint::Tensors tensors;
  for (const auto& [name, value] : items_of(file->path(), dict, "tensors")) {
    if (value->is(Kind::tensor) && is_readable(value->tensor->dtype))
      tensors.insert_or_assign(name, ForeignTensor(file, *value->tensor));
  }
  return tensors;
}

ForeignRule rule_of(const PickleValue& group) {
  ForeignRule rule{.weight_decay = number_of(group.find("weight_decay")),
                   .eps = number_of(group.find("eps")),
                   .momentum = number_of(group.find("momentum")),
                   .betas = {}};
  if (const PickleValue* betas = group.find("betas")) {
    for (const PickleValue* beta : betas->items) rule.betas.push_back(number_of(beta).value_or(-1));
  }
  return rule;
}

bool is_moment(const std::string& state, const fs::path& file) {
  if (state == "step") return false;
  constexpr std::array kKnown = {"exp_avg", "exp_avg_sq", "momentum_buffer", "square_avg"};
  if (std::ranges::find(kKnown, state) != kKnown.end()) return true;
  throw Error(ErrorKind::usage,
              fmt::format("{}: the optimizer has a state '{}', which no optimizer of dstrain has",
                          file.string(), shown(state)),
              "--weights-only takes the weights and begins with new moments");
}

void AgreedCount::add(std::int64_t count, const fs::path& file) {
  if (!value_) {
    value_ = count;
    file_ = file;
  } else if (*value_ != count) {
    throw Error(ErrorKind::data,
                fmt::format("{} says {} {}, {} says {}", file.string(), what_, count,
                            file_.string(), *value_),
                "files of two checkpoints were mixed; copy the folder again");
  }
}

std::vector<std::vector<std::string>> names_of_groups(
    const std::vector<OrderedShape>& order,
    const std::vector<std::vector<std::vector<std::int64_t>>>& groups, const fs::path& file) {
  std::size_t count = 0;
  for (const auto& group : groups) count += group.size();
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::usage,
                fmt::format("{}: which state belongs to which tensor cannot be proved: {}",
                            file.string(), why),
                "--weights-only takes the weights and begins with new moments");
  };
  if (count != order.size()) {
    refuse(
        fmt::format("it has states of {} tensors, the recipe trains {}; is `model.frozen` as it "
                    "was?",
                    count, order.size()));
  }
  if (groups.empty() || groups.size() > 2)
    refuse(fmt::format("it has {} groups of parameters, at most 2 are understood", groups.size()));
  const auto& first = groups[0];
  const std::vector<std::vector<std::int64_t>> none;
  const auto& second = groups.size() > 1 ? groups[1] : none;
  // ways[i]: how many ways lead to i tensors in the first group after the present number of
  // tensors; more than 2 are 2.
  const std::size_t n = order.size();
  std::vector<std::vector<std::uint8_t>> ways(n + 1, std::vector<std::uint8_t>(first.size() + 1));
  ways[0][0] = 1;
  for (std::size_t k = 0; k < n; ++k) {
    for (std::size_t i = 0; i <= std::min(k, first.size()); ++i) {
      if (ways[k][i] == 0) continue;
      const auto go = [&](std::size_t to) {
        ways[k + 1][to] = static_cast<std::uint8_t>(std::min(2, ways[k + 1][to] + ways[k][i]));
      };
      if (i < first.size() && first[i] == order[k].shape) go(i + 1);
      if (k - i < second.size() && second[k - i] == order[k].shape) go(i);
    }
  }
  if (ways[n][first.size()] == 0) {
    for (std::size_t k = 0; k < n; ++k) {
      if (std::ranges::count(ways[k + 1], 0) == std::ssize(ways[k + 1]))
        refuse(fmt::format("no state in its order has the shape [{}] of '{}'",
                           fmt::join(order[k].shape, ", "), order[k].name));
    }
    refuse("their shapes do not fit the model");
  }
  if (ways[n][first.size()] > 1)
    refuse("tensors of equal shape are in both groups of its parameters");
  std::vector<std::vector<std::string>> names(groups.size());
  for (std::size_t k = n, i = first.size(); k-- > 0;) {
    const bool in_first = i > 0 && ways[k][i - 1] > 0 && first[i - 1] == order[k].shape;
    names[in_first ? 0 : 1].push_back(order[k].name);
    if (in_first) --i;
  }
  for (auto& group : names) std::ranges::reverse(group);
  return names;
}

void read_deepspeed_facts(const TorchFile& model, ForeignCheckpoint& into) {
  const PickleValue& root = model->root();
  const fs::path& path = model->path();
  into.step = integer_member(path, root, "global_steps");
  into.samples = integer_member(path, root, "global_samples");
  into.skipped_steps = integer_member(path, root, "skipped_steps");
  if (into.skipped_steps > into.step)
    fail(path, fmt::format("{} of {} steps were skipped", into.skipped_steps, into.step));
  if (const PickleValue* config = optional_member(root, "ds_config")) {
    const PickleValue* batch = config->find("train_batch_size");
    if (batch != nullptr && batch->is(Kind::integer)) into.batch = batch->integer;
  }
  if (into.batch == 0 && into.step > 0 && into.samples % into.step == 0)
    into.batch = into.samples / into.step;
}

void read_loss_scale(const PickleValue& state, ForeignCheckpoint& into) {
  const PickleValue* scaler = state.find("loss_scaler");
  const PickleValue& holder = scaler != nullptr ? *scaler : state;
  const auto scale = number_of(holder.find("cur_scale"));
  if (scale && *scale > 0 && std::isfinite(*scale)) into.loss_scale = *scale;
  const PickleValue *now = holder.find("cur_iter"), *last = holder.find("last_overflow_iter");
  if (now != nullptr && last != nullptr && now->is(Kind::integer) && last->is(Kind::integer))
    into.good_steps = std::max<std::int64_t>(0, now->integer - last->integer - 1);
}

void read_scaler(const fs::path& path, ForeignCheckpoint& into) {
  if (!path_exists(path)) return;
  const TorchFile file = open_torch(path);
  const PickleValue* scale = optional_member(file->root(), "scale");
  const PickleValue* good = optional_member(file->root(), "_growth_tracker");
  if (scale != nullptr && scale->is(Kind::real) && scale->real > 0) into.loss_scale = scale->real;
  if (good != nullptr && good->is(Kind::integer) && good->integer >= 0)
    into.good_steps = good->integer;
}

std::optional<std::int64_t> trainer_step(const fs::path& folder) {
  const fs::path state = folder / "trainer_state.json";
  if (!path_exists(state)) return std::nullopt;
  const nlohmann::json json = read_json_object(state);
  const auto step = json.find("global_step");
  if (step == json.end() || !step->is_number_unsigned()) return std::nullopt;
  return step->get<std::int64_t>();
}

}  // namespace dstrain
