#include <fmt/format.h>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checkpoint_file.h"
#include "test/checkpoint/checkpoint_support.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

/// Boxes of tensors: any cut is read from any other, and manifests whose boxes are wrong are
/// refused.
namespace fs = std::filesystem;
using namespace dstrain;
using namespace dstrain::test;

namespace {

const fs::path kVersion1 = "test/checkpoint/version_1/step-00000100";

/// A tensor's rows or columns are cut into `cuts` parts, and each part's flat buffer into `shards`.
struct Cut {
  bool by_rows = true;
  int cuts = 1, shards = 1;

  [[nodiscard]] int world() const { return cuts * shards; }
  [[nodiscard]] std::vector<PieceSlice> of(const TestTensor& tensor, int rank) const {
    Piece piece(tensor.name, tensor.shape);
    Range& side = by_rows ? piece.rows : piece.columns;
    side = even_part(side.size(), cuts, rank % cuts);
    return slices_of({piece}, even_part(piece.numel(), shards, rank / cuts));
  }
};

CheckpointPart part_of(const Cut& cut, std::int64_t step, int rank) {
  CheckpointPart part;
  const auto tensors = test_tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].size == 0) add_test_box(part, i, {tensors[i].name, tensors[i].shape}, step);
    for (const auto& [box, offset] : cut.of(tensors[i], rank)) add_test_box(part, i, box, step);
  }
  return part;
}

/// True when every box of every rank of the cut is read as it was saved.
bool holds_cut(const CheckpointReader& reader, std::int64_t step, const Cut& cut) {
  const auto tensors = test_tensors();
  for (int rank = 0; rank < cut.world(); ++rank) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      for (const auto& [box, offset] : cut.of(tensors[i], rank))
        if (!box_holds_step(reader, i, box, step)) return false;
    }
  }
  return true;
}

/// A checkpoint whose manifest is written anew with the hash that fits.
class Forged {
 public:
  explicit Forged(fs::path checkpoint) : checkpoint_(std::move(checkpoint)) {
    const std::string text = slurp(checkpoint_ / "MANIFEST.json");
    good_ = text.substr(0, text.rfind(",\n\"hash\""));
  }
  [[nodiscard]] const std::string& good() const { return good_; }
  /// The error of reading it with the first `from` replaced.
  [[nodiscard]] std::string error(const std::string& from, const std::string& to) const {
    const std::size_t at = good_.find(from);
    if (at == std::string::npos) return "not found: " + from;
    const std::string body = std::string(good_).replace(at, from.size(), to);
    FileHash hash;
    hash.update(std::as_bytes(std::span(body)));
    spit(checkpoint_ / "MANIFEST.json", body + ",\n\"hash\": \"" + hash.hex() + "\"}\n");
    return checkpoint_error([&] { (void)CheckpointReader::open(checkpoint_, true); });
  }

 private:
  fs::path checkpoint_;
  std::string good_;
};

bool ends(const std::string& text, const std::string& end) {
  UNSCOPED_INFO(text);
  return text.ends_with(end);
}

bool contains_shown(const std::string& text, const std::string& part) {
  UNSCOPED_INFO(text);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a checkpoint of any cut is read bit-equal in any other", "[checkpoint][property]") {
  const bool by_rows = GENERATE(true, false);
  const int cuts = GENERATE(1, 2, 4), shards = GENERATE(1, 2, 3);
  const Cut saved{by_rows, cuts, shards};
  const TempDir dir;
  REQUIRE(all_ok(save_on(dir.path(), saved.world(), 100, 2, "1",
                         [&](int rank) { return part_of(saved, 100, rank); })));
  const auto reader = CheckpointReader::open(dir / "step-00000100", true);
  REQUIRE(reader->tensors().size() == test_tensors().size());
  for (const bool rows : {true, false}) {
    for (const int parts : {1, 2, 4}) {
      for (const int ranks : {1, 3}) {
        CAPTURE(by_rows, cuts, shards, rows, parts, ranks);
        REQUIRE(holds_cut(*reader, 100, {rows, parts, ranks}));
      }
    }
  }
}

TEST_CASE("a checkpoint of version 1 is read bit-equal in any cut", "[checkpoint]") {
  const auto reader = CheckpointReader::open(kVersion1, true);
  REQUIRE(reader->tensors().size() == test_tensors().size());
  for (const int world : {1, 2, 3, 4}) REQUIRE(holds_step(*reader, 100, world));
  REQUIRE(holds_cut(*reader, 100, {.by_rows = true, .cuts = 4, .shards = 2}));
  REQUIRE(holds_cut(*reader, 100, {.by_rows = false, .cuts = 4, .shards = 3}));
  const CheckpointState& state = reader->state();
  const CheckpointState expected = test_state(100, 3);
  CHECK(state.samples == expected.samples);
  CHECK(state.optimizer_steps == expected.optimizer_steps);
  CHECK(state.loss_scale == expected.loss_scale);
  CHECK(state.good_steps == expected.good_steps);
  CHECK(state.skipped_steps == expected.skipped_steps);
  CHECK(state.tolerated_steps == 0);  // of before there was hysteresis
  CHECK(state.world_size == expected.world_size);
  CHECK(state.recipe == expected.recipe);
}

TEST_CASE("ranks that cut a tensor in different ways do not make a checkpoint", "[checkpoint]") {
  const TempDir dir;
  const auto results = save_on(dir.path(), 4, 100, 2, "1", [](int rank) {
    return part_of({.by_rows = rank % 2 == 0, .cuts = 2, .shards = 2}, 100, rank);
  });
  for (const SaveResult& result : results) {
    CHECK_FALSE(result.ok);
    CHECK(contains_shown(result.error,
                         "the parts of all ranks together has twice the rows [0, 9), "
                         "columns [6, 11) of 'layer.0.weight'"));
  }
  CHECK(fs::is_empty(dir.path()));
}

TEST_CASE("boxes that overlap, leave a hole or lie outside are refused by name", "[checkpoint]") {
  const TempDir dir;
  REQUIRE(all_ok(save_on(dir.path(), 1, 100)));
  const Forged forged(dir / "step-00000100");
  const std::size_t begin = forged.good().find("[0,0,37,0,11,");
  REQUIRE(begin != std::string::npos);
  const std::string box = forged.good().substr(begin, forged.good().find(']', begin) - begin + 1);
  const std::string offset = box.substr(13, box.size() - 14);
  const auto boxed = [&](const std::string& boxes) { return forged.error(box, boxes); };
  const auto sides = [&](const std::vector<std::string>& list) {
    std::string boxes;
    for (const std::string& one : list)
      boxes += fmt::format("{}[0,{},{}]", boxes.empty() ? "" : ",", one, offset);
    return boxed(boxes);
  };
  // Any tiling is whole, in any order.
  CHECK(sides({"0,37,0,11"}) == "no error");
  CHECK(sides({"20,37,5,11", "0,20,0,11", "20,37,0,5"}) == "no error");

  const std::string twice = "MANIFEST.json has twice the ", lacks = "MANIFEST.json lacks the ";
  const std::string of = " of 'layer.0.weight'";
  CHECK(ends(boxed(box + "," + box), twice + "rows [0, 37), columns [0, 11)" + of));
  CHECK(ends(sides({"0,37,0,11", "36,37,10,11"}), twice + "rows [36, 37), columns [10, 11)" + of));
  CHECK(ends(sides({"0,20,0,6", "0,37,6,11", "19,37,0,7"}),
             twice + "rows [19, 20), columns [0, 6)" + of));
  CHECK(ends(sides({"1,37,0,11"}), lacks + "rows [0, 1), columns [0, 11)" + of));
  CHECK(ends(sides({"0,36,0,11"}), lacks + "rows [36, 37), columns [0, 11)" + of));
  CHECK(ends(sides({"0,37,0,5", "0,37,6,11"}), lacks + "rows [0, 37), columns [5, 6)" + of));
  CHECK(ends(sides({"0,37,0,5", "0,9,5,11", "10,37,5,11"}),
             lacks + "rows [9, 10), columns [5, 11)" + of));
  CHECK(ends(boxed(""), lacks + "rows [0, 37), columns [0, 11)" + of));
  // As many elements as the tensor has, at the wrong places.
  CHECK(ends(sides({"0,36,0,11", "0,1,0,11"}), twice + "rows [0, 1), columns [0, 11)" + of));

  const std::string sizes = "gives 'layer.0.weight' of 37 rows and 11 columns the ";
  CHECK(ends(sides({"0,38,0,11"}), sizes + "rows [0, 38), columns [0, 11)"));
  CHECK(ends(sides({"0,37,0,12"}), sizes + "rows [0, 37), columns [0, 12)"));
  CHECK(ends(sides({"9,9,0,11"}), sizes + "rows [9, 9), columns [0, 11)"));
  CHECK(ends(sides({"9,3,11,0"}), sizes + "rows [9, 3), columns [11, 0)"));
  CHECK(contains_shown(sides({"0,4611686018427387903,0,4611686018427387903"}), sizes));
  CHECK(ends(boxed("[1,0,37,0,11,8]"), "puts 'layer.0.weight' into file 1, it lists 1"));
  CHECK(contains_shown(boxed("[0,0,37,0,11,4611686018427387000]"),
                       "puts 407 elements of 'layer.0.weight' at byte 4611686018427387000"));
  for (const char* number : {"18446744073709551615", "9223372036854775808", "-1", "1.0", "\"1\""})
    CHECK(contains_shown(boxed(fmt::format("[0,0,37,0,11,{}]", number)),
                         "'boxes' is not a whole number"));
  for (const char* list : {"[]", "[0,0,37,0,11]", "[0,0,37,0,11,8,0]", "{}", "7"})
    CHECK(ends(boxed(list), "has a box of 'layer.0.weight' that is not a list of six numbers"));
}

TEST_CASE("slices of version 1 that are wrong are refused by name", "[checkpoint]") {
  const TempDir dir;
  fs::copy(kVersion1, dir / "step-00000100", fs::copy_options::recursive);
  const Forged forged(dir / "step-00000100");
  const auto range = [&](const std::string& begin, const std::string& end,
                         const std::string& other_begin, const std::string& other_end) {
    const auto text = [](const std::string& from, const std::string& to) {
      return fmt::format("\"begin\":{},\"end\":{}", from, to);
    };
    return forged.error(text(begin, end), text(other_begin, other_end));
  };
  const std::string of = " of 'layer.0.weight'";
  CHECK(range("0", "136", "0", "136") == "no error");
  CHECK(ends(range("0", "136", "1", "136"), "lacks the rows [0, 1), columns [0, 1)" + of));
  CHECK(
      ends(range("136", "272", "135", "272"), "has twice the rows [12, 13), columns [3, 4)" + of));
  CHECK(ends(range("136", "272", "136", "271"), "lacks the rows [24, 25), columns [7, 8)" + of));
  CHECK(ends(range("272", "407", "272", "408"),
             "gives 'layer.0.weight' of 407 elements the slice [272, 408)"));
  CHECK(ends(range("0", "136", "9", "9"), "the slice [9, 9)"));
  CHECK(contains_shown(forged.error("\"offset\":", "\"offset\":18446744073709551615,\"was\":"),
                       "'offset' is not a whole"));
  CHECK(contains_shown(forged.error("\"offset\":", "\"offset\":4611686018427387000,\"was\":"),
                       "which has"));
  CHECK(ends(forged.error("{\"file\":\"rank0001.safetensors\"", "{\"file\":\"../rank\""),
             "which is not among its files"));
  CHECK(ends(forged.error("\"version\": 1", "\"version\": 2"), "lacks 'boxes'"));
  CHECK(ends(forged.error("\"version\": 1", "\"version\": 0"),
             "has format version 0, this dstrain reads versions 1 to 3"));
}
