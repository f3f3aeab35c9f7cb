#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/models/adapters.h"
#include "engine/models/family.h"
#include "engine/models/four_bit_tensor.h"
#include "engine/models/language_head.h"
#include "engine/models/random_weights.h"
#include "engine/models/weights.h"
#include "engine/nn/block_state.h"
#include "engine/weights/misfits.h"
#include "engine/weights/weight_folder.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// "[100, 768]".
std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

class FileWeights final : public WeightSource {
 public:
  FileWeights(const fs::path& folder, Model& model, std::int64_t seed,
              std::vector<std::string>& notes)
      : folder_(folder), family_(*model.family), seed_(seed), table_(tied_table(model)) {
    Misfits misfits;
    std::vector<const Piece*> parts;
    for (const Parameter* parameter : all_parameters(model)) {
      for (const Piece& part : parameter->parts) {
        if (!is_adapter(part.name)) parts.push_back(&part);
      }
    }
    for (const BlockState* state : all_states(model)) {
      if (state->type == at::kFloat) parts.push_back(&state->part);
      if (state->type == at::kFloat) continue;
      for (const std::string& name : family_.file_names(state->part.name)) counters_.insert(name);
    }
    const std::optional<std::string> head =
        family_.classifier.empty() ? std::nullopt : reason_for_new_head(parts);
    for (const Piece* part : parts) {
      if (head && is_classifier(part->name)) continue;
      place(*part, misfits);
    }
    misfits.throw_if_any(
        family_.recipe().by_name
            ? "the weights are of another model, or of another multiplier of its widths, which "
              "dstrain does not have: change model.name or model.weights"
            : "the weights do not fit config.json beside them or the recipe's model");
    require_one_table();
    if (head) notes.push_back(*head);
    note_unused(head.has_value(), notes);
    note_decoded(model, notes);
  }

  void read_whole(const Parameter& parameter, const Piece& part, std::int64_t begin,
                  std::span<float> out) const override {
    const auto found = places_.find(part.name);
    if (const auto coded = four_bits_.find(part.name); coded != four_bits_.end()) {
      coded->second.read(begin, out);
    } else if (found == places_.end()) {
      draw_weights(seed_, part.name, parameter.init, parameter.init_std, begin, out);
    } else {
      read_found(found->second, part, begin, out);
    }
  }

  [[nodiscard]] std::optional<Nf4Tensor> read_nf4(const Piece& part) const override {
    const auto found = four_bits_.find(part.name);
    if (found == four_bits_.end()) return std::nullopt;
    return found->second.whole();
  }

  [[nodiscard]] bool read_state(const BlockState& state, std::span<float> out) const override {
    const auto found = places_.find(state.part.name);
    if (found == places_.end()) return false;
    found->second.file->read(found->second.name, 0, out);
    return true;
  }

 private:
  void read_found(const WeightFolder::Place& found, const Piece& part, std::int64_t begin,
                  std::span<float> out) const {
    const auto read = [&](std::int64_t from, std::span<float> into) {
      found.file->read(found.name, from, into);
    };
    const std::optional<TransposedMatrix> turned = family_.turned_in_file(part.name, part.shape);
    if (turned) return turned->read(begin, out, read);
    read(begin, out);
  }
  [[nodiscard]] std::string classifier(std::string_view tensor) const {
    return std::string(family_.classifier).append(tensor);
  }
  [[nodiscard]] bool is_classifier(const std::string& name) const {
    return !family_.classifier.empty() && name.starts_with(classifier("."));
  }
  [[nodiscard]] bool is_classifier_in_file(const std::string& name) const {
    for (const char* tensor : {".weight", ".bias"}) {
      const std::vector<std::string> names = family_.file_names(classifier(tensor));
      if (std::ranges::find(names, name) != names.end()) return true;
    }
    return false;
  }
  /// Whether the tensor has a row for each token of the vocabulary.
  [[nodiscard]] bool is_vocabulary(const std::string& name) const {
    return name == kLanguageHeadWeight || name == family_.embedding;
  }

  [[nodiscard]] bool is_buffer(std::string_view name) const {
    return std::ranges::any_of(family_.buffers,
                               [&](std::string_view end) { return name.ends_with(end); });
  }

  /// A head is new when the file's is for another number of classes, or when the file is a model
  /// without one.
  [[nodiscard]] std::optional<std::string> reason_for_new_head(
      const std::vector<const Piece*>& parts) const {
    const std::string weight_name = classifier(".weight"), bias_name = classifier(".bias");
    const auto weight = std::find_if(parts.begin(), parts.end(),
                                     [&](const Piece* part) { return part->name == weight_name; });
    DSTRAIN_CHECK(weight != parts.end(), "a model without " + weight_name);
    const std::int64_t classes = (*weight)->shape.at(0);
    const auto place = folder_.find(family_.file_names(weight_name));
    if (!place) {
      if (folder_.find(family_.file_names(bias_name)) || says_it_has_head()) return std::nullopt;
      return fmt::format("{} has no classifier; a new head for {} classes is drawn at random",
                         folder_.path().string(), classes);
    }
    const std::vector<std::int64_t>& shape = place->entry().shape;
    if (shape.size() != 2 || shape[0] == classes || shape[1] != (*weight)->shape.at(1))
      return std::nullopt;
    return fmt::format(
        "{} has a classifier for {} classes, the model {}; a new head ({}, {}) is drawn at random",
        folder_.path().string(), shape[0], classes, weight_name, bias_name);
  }

  [[nodiscard]] bool says_it_has_head() const {
    const fs::path path = folder_.path() / "config.json";
    if (!path_exists(path)) return false;
    const nlohmann::json json = read_json_object(path);
    const auto found = json.find("architectures");
    return found != json.end() && found->is_array() &&
           std::find(found->begin(), found->end(), family_.with_classifier) != found->end();
  }

  /// timm has the same elements in another shape.
  [[nodiscard]] bool is_timms(const FileTensor& found, const Piece& part) const {
    return family_.timm_tensor != nullptr && family_.timm_tensor({part.name, part.shape}) == found;
  }

  void place(const Piece& part, Misfits& misfits) {
    using enum Misfits::Way;
    std::vector<std::string> names = family_.file_names(part.name);
    if (table_ != nullptr && part.name == table_->parts.front().name)
      names.emplace_back(kLanguageHeadWeight);
    const std::optional<WeightFolder::Place> found = folder_.find(names);
    if (!found) {
      misfits.add(missing, fmt::format("{}: no tensor '{}' {}", folder_.path().string(), part.name,
                                       shape_text(part.shape)));
      return;
    }
    if (FourBitTensor::is_one(folder_, *found)) {
      if (auto coded = FourBitTensor::open(folder_, *found, part, misfits))
        four_bits_.emplace(part.name, *std::move(coded));
      return;
    }
    const WeightFile::Entry& entry = found->entry();
    const std::optional<TransposedMatrix> turned = family_.turned_in_file(part.name, part.shape);
    const std::vector<std::int64_t> wanted = turned ? turned->shape_in_file() : part.shape;
    const std::string what =
        fmt::format("{}: tensor '{}'", found->file->path().string(), found->name);
    if (is_vocabulary(part.name) && entry.shape.size() == 2 && entry.shape[0] != part.shape[0] &&
        entry.shape[1] == part.shape[1]) {
      misfits.add(shape, fmt::format("{} is for a vocabulary of {} tokens, the model has {}", what,
                                     entry.shape[0], part.shape[0]));
    } else if (entry.shape != wanted && !is_timms({found->name, entry.shape}, part)) {
      misfits.add(shape, fmt::format("{} is {}, the model needs {}", what, shape_text(entry.shape),
                                     shape_text(wanted)));
    } else if (entry.dtype != "F32" && entry.dtype != "F16" && entry.dtype != "BF16") {
      misfits.add(dtype,
                  fmt::format("{} is {}; dstrain reads F32, F16 and BF16", what, entry.dtype));
    } else {
      places_.emplace(part.name, *found);
    }
  }

  /// A tied head may have been saved a second time. Where it is another table, transformers 5 goes
  /// by the files and transformers 4 by config.json.
  void require_one_table() const {
    if (table_ == nullptr) return;
    const Piece& part = table_->parts.front();
    const WeightFolder::Place& table = places_.at(part.name);
    const std::optional<WeightFolder::Place> head = folder_.find({kLanguageHeadWeight});
    if (!head || head->name == table.name) return;
    const auto refuse = [&](const std::string& where) {
      throw Error(ErrorKind::data,
                  fmt::format("{}: '{}' is not '{}'{}, but config.json ties them "
                              "(tie_word_embeddings)",
                              head->file->path().string(), head->name, table.name, where),
                  "write \"tie_word_embeddings\": false into config.json where the head is a "
                  "matrix of its own, or take it out of the files");
    };
    if (head->entry().shape != part.shape) refuse("");
    constexpr std::int64_t kAtOnce = 1 << 20;
    std::vector<float> values, others;
    for (std::int64_t begin = 0; begin < num_elements(part.shape); begin += kAtOnce) {
      values.resize(static_cast<std::size_t>(std::min(kAtOnce, num_elements(part.shape) - begin)));
      others.resize(values.size());
      table.file->read(table.name, begin, values);
      head->file->read(head->name, begin, others);
      const auto [value, other] = std::ranges::mismatch(values, others);
      if (value != values.end())
        refuse(fmt::format(" ({} and {} at element {})", *other, *value,
                           begin + (value - values.begin())));
    }
  }

  /// What files have in 4 bits and training has not.
  void note_decoded(const Model& model, std::vector<std::string>& notes) const {
    std::size_t decoded = 0;
    for (const Parameter* parameter : all_parameters(model)) {
      for (const Piece& part : parameter->parts)
        decoded += !parameter->nf4 && four_bits_.contains(part.name) ? 1 : 0;
    }
    if (decoded == 0) return;
    notes.push_back(
        fmt::format("{}: {} matrices in 4 bits are decoded into the compute type; lora.base: nf4 "
                    "keeps those of adapters as they are",
                    folder_.path().string(), decoded));
  }

  void note_unused(bool new_head, std::vector<std::string>& notes) const {
    std::set<std::string> used;
    for (const auto& [part, place] : places_) used.insert(place.name);
    for (const auto& [part, coded] : four_bits_)
      used.insert(coded.names().begin(), coded.names().end());
    std::vector<std::string> unused;
    for (const auto& [name, file] : folder_.tensors()) {
      const bool expected = (new_head && is_classifier_in_file(name)) ||
                            (table_ != nullptr && name == kLanguageHeadWeight) ||
                            counters_.contains(name) || is_buffer(name);
      if (!used.contains(name) && !expected) unused.push_back(name);
    }
    if (!unused.empty()) {
      notes.push_back(fmt::format("{}: not used by this model: {}", folder_.path().string(),
                                  listed(unused, ", ")));
    }
  }

  WeightFolder folder_;
  const Family& family_;
  std::int64_t seed_;
  const Parameter* table_;  ///< of embedding and head, where they are one
  std::map<std::string, WeightFolder::Place> places_;  ///< by part name
  std::map<std::string, FourBitTensor> four_bits_;     ///< the same of those in 4 bits
  std::set<std::string> counters_;                     ///< of untrained state: each run's own
};

}  // namespace

std::unique_ptr<WeightSource> open_weights(const fs::path& folder, Model& model, std::int64_t seed,
                                           std::vector<std::string>& notes) {
  return std::make_unique<FileWeights>(folder, model, seed, notes);
}

bool has_timm_names(const fs::path& folder, const Model& model) {
  if (model.family->timm_tensor == nullptr) return false;
  const WeightFolder files(folder);
  for (const Parameter* parameter : all_parameters(model)) {
    for (const Piece& part : parameter->parts) {
      const std::string theirs = model.family->timm_tensor({part.name, part.shape}).name;
      if (theirs != part.name && files.tensors().contains(theirs)) return true;
    }
  }
  return false;
}

}  // namespace dstrain
