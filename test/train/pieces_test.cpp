#include <map>
#include <utility>

#include "engine/models/groups.h"
#include "engine/models/weights.h"
#include "engine/train/state/state_store.h"
#include "test/checkpoint/checkpoint_support.h"
#include "test/models/bind.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

/// States of ranks that hold boxes of tensors, as under tensor parallelism.
namespace dstrain {
namespace {

using Values = std::map<std::string, std::vector<float>>;

/// Each tensor's rows or columns are cut into `cuts` parts, each part's flat groups into `shards`.
struct Division {
  bool by_rows = true;
  int cuts = 1, shards = 1;
  [[nodiscard]] int world() const { return cuts * shards; }
};

Model cut_model(const Division& cut, int rank) {
  Model model = test::small_model(3);
  for (Parameter* parameter : all_parameters(model)) {
    std::vector<Piece> boxes = parameter->parts;
    for (Piece& box : boxes) {
      Range& side = cut.by_rows ? box.rows : box.columns;
      side = even_part(side.size(), cut.cuts, rank % cut.cuts);
    }
    parameter->hold(std::move(boxes));
  }
  return model;
}

/// A rank's model and what it holds of the state; `split`: with weights in halves.
struct Rank {
  Rank(const Division& cut, int rank, bool split = false)
      : model(cut_model(cut, rank)), groups(group_parameters(model).groups) {
    const Mesh mesh(cut.shards, {.shard = cut.shards});
    const Layout layout = zero_layout(3, mesh, model_cost(model, {.micro_batch = 1}), {});
    states = std::make_unique<StateStore>(layout, groups, std::vector<BlockState*>{},
                                          StateOptions{.compute = at::kBFloat16,
                                                       .split_weights = split,
                                                       .mesh = mesh,
                                                       .rank = rank / cut.cuts});
  }

  Model model;
  ParameterGroups groups;
  std::unique_ptr<StateStore> states;
};

Values whole_tensors(const WeightSource& source) {
  const Model model = test::small_model(3);
  Values tensors;
  for (const Parameter* parameter : all_parameters(model)) {
    for (const Piece& part : parameter->parts) {
      std::vector<float>& values = tensors[part.name];
      values.resize(static_cast<std::size_t>(part.numel()));
      source.read_whole(*parameter, part, 0, values);
    }
  }
  return tensors;
}

/// Makes each moment, zero so far, another multiple of the weights.
void set_moments(Rank& rank, int num) {
  for (int g = 0; std::cmp_less(g, rank.groups.size()); ++g) {
    const Range own = rank.states->own_range(g);
    for (int i = 0; i < num; ++i)
      rank.states->moment(g, i, own).add_(rank.states->weights(g, own), i + 2);
  }
}

/// Counts the elements that a rank saves; -1 when one is not that of the whole tensor.
std::int64_t count_equal(const CheckpointPart& part, const Values& expected) {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < part.pieces.size(); ++i) {
    const Piece& box = part.pieces[i];
    const float factor = box.name.starts_with("optimizer.exp_avg/")      ? 2
                         : box.name.starts_with("optimizer.exp_avg_sq/") ? 3
                                                                         : 1;
    const std::vector<float>& whole = expected.at(box.name.substr(box.name.find('/') + 1));
    std::vector<float> values(static_cast<std::size_t>(box.numel()));
    part.reads[i]({0, box.numel()}, values);
    for (std::int64_t element = 0; element < box.numel(); ++element) {
      const float value = whole[static_cast<std::size_t>(box.whole_index(element))];
      if (values[static_cast<std::size_t>(element)] != factor * value) return -1;
    }
    count += box.numel();
  }
  return count;
}

std::int64_t count_of(const Values& tensors) {
  std::int64_t count = 0;
  for (const auto& [name, values] : tensors) count += std::ssize(values);
  return count;
}

TEST_CASE("states of any cut are drawn or read, saved and restored in another cut bit for bit",
          "[train][pieces][property]") {
  const bool by_rows = GENERATE(true, false), from_file = GENERATE(true, false);
  const int cuts = GENERATE(2, 4), shards = GENERATE(1, 2, 3);
  const bool split = GENERATE(false, true);  // those that restore have it the other way, too
  const Division saved{by_rows, cuts, shards};
  CAPTURE(by_rows, cuts, shards, from_file, split);

  const test::TempDir folder;
  const Values expected = whole_tensors(*make_random_weights(7));
  const std::int64_t total = 3 * count_of(expected);
  export_weights(folder / "weights", test::small_model(3), test::reader_of(expected), {});
  std::vector<CheckpointPart> parts;
  std::int64_t found = 0;
  for (int i = 0; i < saved.world(); ++i) {
    Rank rank(saved, i, split);
    std::vector<std::string> notes;
    rank.states->initialize(from_file ? *open_weights(folder / "weights", rank.model, 1, notes)
                                      : *make_random_weights(7));
    set_moments(rank, 2);
    parts.push_back(rank.states->snapshot());
    const std::int64_t count = count_equal(parts.back(), expected);
    REQUIRE(count >= 0);
    found += count;
  }
  REQUIRE(found == total);

  const std::filesystem::path root = folder / "checkpoints";
  REQUIRE(test::all_ok(test::save_on(root, saved.world(), 5, 2, "1", [&](int rank) {
    return parts[static_cast<std::size_t>(rank)];
  })));
  const auto reader = CheckpointReader::open(root / "step-00000005", /*verify=*/true);
  for (const Division& wanted :
       {Division{true, 1, 1}, Division{true, 4, 2}, Division{false, 2, 3}}) {
    CAPTURE(wanted.by_rows, wanted.cuts, wanted.shards);
    found = 0;
    for (int i = 0; i < wanted.world(); ++i) {
      Rank rank(wanted, i, split == (wanted.cuts == 4));
      rank.states->restore(*reader, /*chunk=*/100);
      const std::int64_t count = count_equal(rank.states->snapshot(), expected);
      REQUIRE(count >= 0);
      found += count;
    }
    REQUIRE(found == total);
  }
}

TEST_CASE("a parameter is bound to the boxes that it holds", "[train][pieces]") {
  const bool by_rows = GENERATE(true, false);
  const Values expected = whole_tensors(*make_random_weights(7));
  for (int i = 0; i < 2; ++i) {
    Rank rank({by_rows, 2, 1}, i);
    rank.states->initialize(*make_random_weights(7));
    for (int g = 0; std::cmp_less(g, rank.groups.size()); ++g)
      rank.states->bind_values(g, rank.states->master(g));
    for (const Parameter* parameter : all_parameters(rank.model)) {
      REQUIRE(parameter->value.sizes() == at::IntArrayRef(parameter->shape));
      const float* value = parameter->value.const_data_ptr<float>();
      bool equal = true;
      for (const Piece& part : parameter->parts) {
        const std::vector<float>& whole = expected.at(part.name);
        for (std::int64_t element = 0; element < part.numel(); ++element) {
          equal = equal && *value++ == whole[static_cast<std::size_t>(part.whole_index(element))];
        }
      }
      CAPTURE(parameter->parts.front().name);
      REQUIRE(equal);
    }
  }
}

}  // namespace
}  // namespace dstrain
