#include <fmt/format.h>

#include <ctime>

#include "engine/checkpoint/checkpoint_boxes.h"
#include "test/checkpoint/checkpoint_support.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

/// Checkpoints of format 3, whose manifest holds a layout in the place of boxes.
namespace fs = std::filesystem;
using namespace dstrain;
using namespace dstrain::test;

namespace {

/// A run of two tensor-parallel parts: matrices are cut by rows or columns, the rest is whole on
/// both. Each part's flat group is divided into shards, and each shard among holders.
struct Run {
  int cuts = 1, shards = 1, holders = 1;

  [[nodiscard]] int world() const { return cuts * shards * holders; }
  [[nodiscard]] int cut_of(int rank) const { return rank % cuts; }
  [[nodiscard]] SavedPlace place_of(int rank) const {
    return {.shard = rank / cuts % shards, .holder = rank / cuts / shards};
  }
};

/// Tensors with a moment each, except the last two of test_tensors(), which are listed.
struct Tensor {
  std::string name;
  std::vector<std::int64_t> shape;
  bool by_rows;
};
const std::vector<Tensor>& tensors() {
  static const std::vector<Tensor> list = {{"embed", {29, 6}, true},
                                           {"q", {12, 10}, true},
                                           {"k", {8, 10}, true},
                                           {"down", {7, 20}, false}};
  return list;
}
/// By name, the number in test_value().
std::size_t number_of(const std::string& name) {
  std::size_t number = 100;
  for (const Tensor& tensor : tensors()) {
    if (name == tensor.name) return number;
    if (name == "optimizer.exp_avg/" + tensor.name) return number + 1;
    number += 2;
  }
  return 99;
}

SavedLayout layout_of(const Run& run, int cut) {
  std::vector<SavedParameter> parameters;
  std::int64_t next = 0;
  const auto part = [&](std::size_t i) {
    Piece piece(tensors()[i].name, tensors()[i].shape);
    Range& side = tensors()[i].by_rows ? piece.rows : piece.columns;
    side = even_part(side.size(), run.cuts, cut);
    return piece;
  };
  const auto add = [&](std::vector<Piece> parts, std::size_t rule) {
    parameters.push_back({.offset = next, .parts = std::move(parts), .rule = rule});
    next = (next + saved_elements(parameters.back()) + 15) / 16 * 16;
  };
  add({part(0)}, 1);
  add({part(1), part(2)}, 0);  // queries and keys are stacked
  add({part(3)}, 0);
  const auto unit = static_cast<std::int64_t>(16 * run.shards);
  const std::int64_t padded = (next + unit - 1) / unit * unit;
  return {{.padded = padded,
           .shards = run.shards,
           .holders = run.holders,
           .place = 0,
           .parameters = parameters,
           .states = {{{0, padded}, {"", ""}},
                      {{0, padded}, {"optimizer.exp_avg/", "optimizer.exp_avg/"}}}}};
}

CheckpointPart part_of(const Run& run, std::int64_t step, int rank) {
  CheckpointPart part;
  const SavedLayout layout = layout_of(run, run.cut_of(rank));
  part.places = {run.place_of(rank)};
  for (const SavedGroup& group : layout) {
    for (const SavedState& state : group.states) {
      for_each_saved_box(group, state, saved_range(group, part.places[0]),
                         [&](const SavedParameter& parameter, const Piece& piece, Range rows,
                             Range columns, std::int64_t) {
                           const Piece box(state.prefixes[parameter.rule] + piece.name, piece.shape,
                                           rows, columns);
                           add_test_box(part, number_of(box.name), box, step);
                         });
    }
  }
  part.layout = std::make_shared<const SavedLayout>(layout);
  if (rank == 0) {
    add_test_box(part, 90, Piece("running_mean", {5}), step);
    add_test_box(part, 91, Piece("nothing", {0, 3}), step);
  }
  return part;
}

void check_values(const CheckpointReader& reader, std::int64_t step) {
  for (const Piece& whole : reader.tensors()) {
    if (whole.name == "nothing") continue;
    const std::size_t number = whole.name == "running_mean" ? 90 : number_of(whole.name);
    CAPTURE(whole.name);
    REQUIRE(number != 99);
    for (const int cuts : {1, 2, 3}) {
      for (int cut = 0; cut < cuts; ++cut) {
        Piece rows = whole, columns = whole;
        rows.rows = even_part(whole.rows.end, cuts, cut);
        columns.columns = even_part(whole.columns.end, cuts, cut);
        REQUIRE(box_holds_step(reader, number, rows, step));
        REQUIRE(box_holds_step(reader, number, columns, step));
      }
    }
  }
}

/// The manifest with a replacement and the hash that fits, as the error of opening it.
std::string forged(const fs::path& checkpoint, const std::string& good, const std::string& from,
                   const std::string& to) {
  std::string body = good;
  const std::size_t at = body.find(from);
  REQUIRE(at != std::string::npos);
  body.replace(at, from.size(), to);
  FileHash hash;
  hash.update(std::as_bytes(std::span(body)));
  spit(checkpoint / "MANIFEST.json", body + ",\n\"hash\": \"" + hash.hex() + "\"}\n");
  return checkpoint_error([&] { (void)CheckpointReader::open(checkpoint, true); });
}

/// A model of 70B in 82 groups, of which ranks hold a shard each: weights and two moments.
SavedLayout large_layout(int ranks) {
  constexpr std::int64_t kWidth = 8192, kFeed = 28672, kVocabulary = 128'256;
  const auto group_of = [&](const std::vector<Piece>& pieces) {
    SavedGroup group{
        .padded = 0, .shards = ranks, .holders = 1, .place = 0, .parameters = {}, .states = {}};
    std::int64_t next = 0;
    for (const Piece& tensor : pieces) {
      group.parameters.push_back({.offset = next, .parts = {tensor}, .rule = 0});
      next = (next + tensor.numel() + kFlatAlignment - 1) / kFlatAlignment * kFlatAlignment;
    }
    const std::int64_t unit = kFlatAlignment * ranks;
    group.padded = (next + unit - 1) / unit * unit;
    for (const char* prefix : {"", "optimizer.exp_avg/", "optimizer.exp_avg_sq/"})
      group.states.push_back({{0, group.padded}, {prefix}});
    return group;
  };
  SavedLayout layout = {group_of({Piece("model.embed_tokens.weight", {kVocabulary, kWidth})})};
  for (int i = 0; i < 80; ++i) {
    const std::string block = fmt::format("model.layers.{}.", i);
    layout.push_back(group_of({Piece(block + "self_attn.q_proj.weight", {kWidth, kWidth}),
                               Piece(block + "self_attn.k_proj.weight", {1024, kWidth}),
                               Piece(block + "self_attn.v_proj.weight", {1024, kWidth}),
                               Piece(block + "self_attn.o_proj.weight", {kWidth, kWidth}),
                               Piece(block + "mlp.gate_proj.weight", {kFeed, kWidth}),
                               Piece(block + "mlp.up_proj.weight", {kFeed, kWidth}),
                               Piece(block + "mlp.down_proj.weight", {kWidth, kFeed}),
                               Piece(block + "input_layernorm.weight", {kWidth}),
                               Piece(block + "post_attention_layernorm.weight", {kWidth})}));
  }
  layout.push_back(group_of(
      {Piece("model.norm.weight", {kWidth}), Piece("lm_head.weight", {kVocabulary, kWidth})}));
  return layout;
}

}  // namespace

TEST_CASE("a checkpoint that lists no boxes is read bit-equal in any cut", "[checkpoint][layout]") {
  const Run run{GENERATE(1, 2), GENERATE(1, 2, 3), GENERATE(1, 3)};
  CAPTURE(run.cuts, run.shards, run.holders);
  const TempDir dir;
  const auto results = save_on(dir.path(), run.world(), 100, 2, "1",
                               [&](int rank) { return part_of(run, 100, rank); });
  CAPTURE(results[0].error);
  REQUIRE(all_ok(results));
  const auto reader = CheckpointReader::open(dir / "step-00000100", true);
  REQUIRE(reader->tensors().size() == 2 * tensors().size() + 2);
  check_values(*reader, 100);
  const Manifest manifest =
      parse_manifest(slurp(dir / "step-00000100" / "MANIFEST.json"), "MANIFEST.json");
  CHECK(manifest.tensors.size() == 2);  // what no layout has
  CHECK(manifest.layouts.size() == static_cast<std::size_t>(run.cuts));
  CHECK(manifest.file_layouts.size() == static_cast<std::size_t>(run.world()));
}

TEST_CASE("a checkpoint of version 2 is read bit-equal in any cut", "[checkpoint][layout]") {
  const auto reader = CheckpointReader::open("test/checkpoint/version_2/step-00000100", true);
  REQUIRE(reader->tensors().size() == test_tensors().size());
  for (const int world : {1, 2, 3, 4}) REQUIRE(holds_step(*reader, 100, world));
  CHECK(reader->state().tolerated_steps == 2);
  CHECK(reader->state().class_names == test_state(100, 3).class_names);
}

TEST_CASE("a manifest of a wrong layout is refused in words", "[checkpoint][layout]") {
  const Run run{.cuts = 2, .shards = 2, .holders = 2};
  const TempDir dir;
  REQUIRE(all_ok(save_on(dir.path(), run.world(), 100, 2, "1",
                         [&](int rank) { return part_of(run, 100, rank); })));
  const fs::path checkpoint = dir / "step-00000100";
  const std::string text = slurp(checkpoint / "MANIFEST.json");
  const std::string good = text.substr(0, text.rfind(",\n\"hash\""));
  const auto error = [&](const std::string& from, const std::string& to) {
    const std::string found = forged(checkpoint, good, from, to);
    UNSCOPED_INFO(found);
    return found;
  };
  const std::string layout = "describes boxes of another layout: those that are computed from it";
  const std::string more = "puts more into rank";
  CHECK(error("\"step\":100", "\"step\":100") == "no error");
  // Two files that have changed places: all is whole, but they do not hold it.
  std::string swapped = good;
  swapped.replace(good.find("\"at\":[[0,0]]"), 12, "\"at\":[[0,1]]");
  swapped.replace(good.find("\"at\":[[0,1]]"), 12, "\"at\":[[0,0]]");
  const std::string of_swapped = forged(checkpoint, swapped, "\"step\":100", "\"step\":100");
  CAPTURE(of_swapped);
  CHECK((contains(of_swapped, layout) || contains(of_swapped, more)));
  CHECK(contains(error("\"at\":[[0,0]]", "\"at\":[[1,0]]"), "has the same part of 'embed' in"));
  CHECK(contains(error("\"at\":[[0,0]]", "\"at\":[[2,0]]"), "part 2 of 2 and 0 of 2 of a group"));
  CHECK(contains(error("\"at\":[[0,0]]", "\"at\":[]"), "0 places, its layout has more"));
  CHECK(contains(error("\"layout\":0", "\"layout\":1"), "has the same part of 'embed' in"));
  CHECK(contains(error("\"layout\":0", "\"layout\":2"),
                 "'layout' is not a whole number from 0 to 1"));
  CHECK(contains(error("\"data\":", "\"data\":1"), "'data' is not a whole number from 0 to"));
  CHECK(contains(error("\"shards\":2", "\"shards\":1"), more));
  CHECK(contains(error("\"shards\":2", "\"shards\":4"), "lacks part 2 of 4 and 0 of 2 of 'embed'"));
  CHECK(contains(error("\"shards\":2", "\"shards\":16"), "among 16 x 2 ranks, it lists 8 files"));
  CHECK(contains(error("\"holders\":2", "\"holders\":3"), "lacks part 0 of 2 and 2 of 3"));
  CHECK(contains(error("\"shards\":2,\"holders\":2", "\"shards\":4,\"holders\":1"), "of 4"));
  CHECK(contains(error("\"padded\":", "\"padded\":1"), more));
  CHECK(contains(error("\"offset\":0", "\"offset\":1"), more));
  CHECK(contains(error("\"prefixes\":[\"\",\"\"]", "\"prefixes\":[\"\"]"), "for 1 of 2 rules"));
  CHECK(contains(error("[\"q\",[12,10],0,6,0,10]", "[\"q\",[12,10],1,7,0,10]"),
                 "lacks the rows [0, 1), columns [0, 10) of 'q'"));
  CHECK(contains(error("[\"q\",[12,10],0,6,0,10]", "[\"q\",[12,10],0,60,0,10]"),
                 "of 12 rows and 10 columns the rows [0, 60)"));
  CHECK(contains(error("[\"q\",[12,10]", "[\"q\",[13,10]"), "two shapes"));
  CHECK(contains(error("[\"q\",[12,10],0,6,0,10]", "[\"q\",[12,10],0]"), "[name, shape]"));
  CHECK(contains(error("\"layouts\": [", "\"layouts\": [[7],"), "'layouts' is not a whole number"));
  CHECK(contains(error("\"boxes_hash\": \"", "\"boxes_hash\": \"0"), "'boxes_hash' that is not"));
  const std::size_t at = good.find("\"boxes_hash\": \"") + 15;
  CHECK(
      contains(error(good.substr(at, 4), good.substr(at, 4) == "0000" ? "1111" : "0000"), layout));
  // The states in another order: the same boxes at other places.
  CHECK(contains(
      error("\"prefixes\":[\"\",\"\"]},{\"range\"", "\"prefixes\":[\"x/\",\"x/\"]},{\"range\""),
      "lacks the"));
}

TEST_CASE("ranks vote with less than 256 bytes, whatever the model", "[checkpoint][layout]") {
  const SavedLayout layout = large_layout(8192);
  const Vote vote{.step = 123'456,
                  .file = {"rank8191.safetensors", 104'857'600, std::string(32, 'a')},
                  .data = 65'536,
                  .layout = layout_hash(layout),
                  .places = {{8191, 0}},
                  .tensors = {}};
  const std::string text = vote_text(vote);
  CHECK(text.size() < 256);
  const Vote read = parse_vote(text, "a vote");
  CHECK(read.layout == vote.layout);
  CHECK(read.places == vote.places);
  CHECK(read.file.bytes == vote.file.bytes);
  CHECK(read.data == vote.data);
}

TEST_CASE("the manifest of 70B parameters on 8,192 ranks has less than 2 MB",
          "[checkpoint][layout][scale]") {
  constexpr int kRanks = 8192;
  const SavedLayout layout = large_layout(kRanks);
  Manifest manifest;
  manifest.state.world_size = kRanks;
  manifest.state.recipe = std::string(20'000, 'r');
  const std::size_t index = add_layout(manifest, layout);
  for (int rank = 0; rank < kRanks; ++rank) {
    std::int64_t elements = 0;
    for (const SavedGroup& group : layout) elements += 3 * group.padded / group.shards;
    add_vote(manifest,
             {.step = 0,
              .file = {fmt::format("rank{:04d}.safetensors", rank), 100'000 + 4 * elements,
                       std::string(32, 'a')},
              .data = 100'000,
              .layout = {},
              .places = {{rank, 0}},
              .tensors = {}},
             index);
  }
  auto seconds = [begin = std::clock()]() mutable {
    const double passed = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    begin = std::clock();
    return passed;
  };
  {
    const StoredBoxes boxes(manifest, "the parts");
    manifest.boxes_hash = boxes.hash();
  }
  const std::string text = manifest_text(manifest);
  const double saving = seconds();
  const StoredBoxes boxes(parse_manifest(text, "MANIFEST.json"), "MANIFEST.json");
  const double reading = seconds();
  CHECK(text.size() < 2'000'000);
  // A rank finds what it needs without looking at all others.
  std::size_t found = 0;
  for (std::size_t tensor = 0; tensor < boxes.tensors().size(); ++tensor)
    found += boxes.boxes(tensor, {0, 1}).size();
  const double finding = seconds();
  CHECK(found >= boxes.tensors().size());
  fmt::print(
      "manifest of 8,192 ranks: {} bytes; rank 0 makes it in {:.2f} s, a rank reads it in "
      "{:.2f} s, the boxes of one row of {} tensors in {:.3f} s\n",
      text.size(), saving, reading, boxes.tensors().size(), finding);
  CHECK(saving < 10);
  CHECK(reading < 10);
}
