#include "engine/weights/torch_zip.h"

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/weights/safetensors.h"
#include "engine/weights/torch_weights.h"
#include "engine/weights/weight_folder.h"
#include "test/support/catch.h"
#include "test/support/files.h"
#include "test/support/mutate.h"
#include "test/support/temp_dir.h"
#include "test/support/torch_file.h"

namespace dstrain {
namespace {

using test::pickled;
using test::pickled_tensor;
using test::program_of;
using test::ZipRecord;
using namespace std::string_literals;

std::string bytes_of(const std::vector<float>& values) {
  std::string bytes(4 * values.size(), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// {"w": [2, 3] of 0 to 5, "t": the same transposed, "half": [1.5, -2] in bf16}
std::vector<ZipRecord> records() {
  return {{"archive/data.pkl",
           program_of("}(" + pickled("w") + pickled_tensor("0", {2, 3}, {3, 1}, 0, 6) +
                      pickled("t") + pickled_tensor("0", {3, 2}, {1, 3}, 0, 6) + pickled("half") +
                      pickled_tensor("1", {2}, {1}, 1, 3, "BFloat16Storage") + pickled("epoch") +
                      "K\x03u")},
          {"archive/byteorder", "little"},
          {"archive/data/0", bytes_of({0, 1, 2, 3, 4, 5})},
          {"archive/data/1", "\0\0\xC0\x3F\0\xC0"s},
          {"archive/version", "3\n"}};
}

std::string torch_zip_error(const std::filesystem::path& path, const std::string& content) {
  test::spit(path, content);
  try {
    const TorchWeights weights(path);
    for (const auto& [name, entry] : weights.entries()) {
      if (!is_readable(entry.dtype)) continue;
      std::vector<float> values((entry.end - entry.begin) / (entry.dtype == "F32" ? 4 : 2));
      weights.read(name, 0, values);
    }
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::data);
    return std::string(error.what()) + " | " + error.hint();
  }
  return "no error";
}

std::vector<float> values_of(const WeightFile& file, const std::string& name, std::int64_t begin,
                             std::size_t count) {
  std::vector<float> values(count);
  file.read(name, begin, values);
  return values;
}

TEST_CASE("weights of torch.save are read where they lie, transposed ones too",
          "[weights][torch]") {
  const test::TempDir folder;
  for (const bool wide : {false, true}) {
    test::spit(folder / "w.pth", test::zip_of(records(), wide));
    const TorchWeights weights(folder / "w.pth");
    CHECK(weights.entries().size() == 3);
    CHECK(weights.entries().at("w").dtype == "F32");
    CHECK(weights.entries().at("t").shape == std::vector<std::int64_t>{3, 2});
    CHECK(values_of(weights, "w", 0, 6) == std::vector<float>{0, 1, 2, 3, 4, 5});
    CHECK(values_of(weights, "w", 4, 2) == std::vector<float>{4, 5});
    CHECK(values_of(weights, "t", 0, 6) == std::vector<float>{0, 3, 1, 4, 2, 5});
    CHECK(values_of(weights, "t", 3, 2) == std::vector<float>{4, 2});
    CHECK(values_of(weights, "half", 0, 2) == std::vector<float>{1.5, -2});
  }
}

TEST_CASE("a torch file inside another is read from its place", "[weights][torch]") {
  const test::TempDir folder;
  const std::string inner = test::zip_of(records());
  test::spit(folder / "x.distcp", std::string(100, 'x') + inner + std::string(50, 'y'));
  const auto file = std::make_shared<PartFile>(folder / "x.distcp");
  const TorchZip zip(file, 100, inner.size());
  const PickleValue* tensor = zip.root().find("w");
  std::vector<float> values(6);
  read_tensor(zip, *tensor->tensor, 0, values);
  CHECK(values == std::vector<float>{0, 1, 2, 3, 4, 5});
  CHECK_THROWS_AS(TorchZip(file, 100, inner.size() + 51), Error);
  CHECK_THROWS_AS(TorchZip(file, 101, inner.size() - 1), Error);
}

TEST_CASE("a state_dict under a known key is found", "[weights][torch]") {
  const test::TempDir folder;
  auto list = records();
  list[0].data = program_of("}(" + pickled("epoch") + "K\x05" + pickled("state_dict") + "}" +
                            pickled("w") + pickled_tensor("0", {6}, {1}, 0, 6) + "su");
  test::spit(folder / "w.pth", test::zip_of(list));
  CHECK(TorchWeights(folder / "w.pth").entries().contains("w"));
}

TEST_CASE("a folder's pytorch_model.bin is read where there is no safetensors file",
          "[weights][torch]") {
  const test::TempDir folder;
  test::spit(folder / "pytorch_model.bin", test::zip_of(records()));
  CHECK(WeightFolder(folder.path()).find({"w"})->entry().dtype == "F32");
  std::filesystem::rename(folder / "pytorch_model.bin",
                          folder / "pytorch_model-00001-of-00001.bin");
  test::spit(
      folder / "pytorch_model.bin.index.json",
      R"({"weight_map": {"w": "pytorch_model-00001-of-00001.bin", "t": "pytorch_model-00001-of-00001.bin", "half": "pytorch_model-00001-of-00001.bin"}})");
  CHECK(WeightFolder(folder.path()).tensors().size() == 3);
  // safetensors goes before.
  write_safetensors(folder / "model.safetensors", {}, {});
  CHECK(WeightFolder(folder.path()).tensors().empty());
}

TEST_CASE("zips that torch.save does not write are refused by name", "[weights][torch]") {
  const test::TempDir folder;
  const auto path = folder / "w.pth";
  const auto check = [&](const std::string& content, const std::string& wanted) {
    const std::string found = torch_zip_error(path, content);
    CAPTURE(found, wanted);
    CHECK(found.starts_with(path.string()));
    CHECK(found.find(wanted) != std::string::npos);
  };
  const auto changed = [&](std::size_t index, auto change) {
    auto list = records();
    change(list[index]);
    return test::zip_of(list);
  };
  check("", "0 bytes are no torch file");
  check("\x80\x02\x8a\nl\xfc.",
        "is a torch file of before PyTorch 1.6, or a plain pickle | write it anew where you trust "
        "it: python3 -c \"import torch; f = '");
  check("not a zip at all", "no zip begins there");
  check(changed(2, [](ZipRecord& r) { r.method = 8; }),
        "record 'archive/data/0' is compressed, torch.save only stores | write it anew");
  check(changed(2, [](ZipRecord& r) { r.flags = 1; }), "record 'archive/data/0' is encrypted");
  check(changed(2, [](ZipRecord& r) { r.name = "../../etc/passwd"; }),
        "a record with the name '../../etc/passwd'");
  check(changed(2, [](ZipRecord& r) { r.name = "/etc/passwd"; }),
        "a record with the name '/etc/passwd'");
  check(changed(2, [](ZipRecord& r) { r.name = "archive/data/1"; }),
        "two records 'archive/data/1'");
  check(changed(2, [](ZipRecord& r) { r.name = "archive/data/9"; }), "no record 'data/0'");
  check(changed(2, [](ZipRecord& r) { r.size = 1 << 20; }),
        "'archive/data/0' of 1048576 bytes");
  check(changed(2, [](ZipRecord& r) { r.header = 1 << 20; }),
        "'archive/data/0' begins outside of it");
  check(changed(2, [](ZipRecord& r) { r.header = 1; }),
        "'archive/data/0' does not begin at byte 1");
  check(changed(2, [](ZipRecord& r) { r.data.resize(20); }),
        "record 'data/0' has 20 bytes, too few for 6 elements of F32");
  check(changed(0, [](ZipRecord& r) { r.name = "archive/other.pkl"; }), "it has no data.pkl");
  check(changed(1, [](ZipRecord& r) { r.data = "big"; }), "another byte order");
  check(changed(4, [](ZipRecord& r) { r.name = "archive/constants.pkl"; }),
        "is a TorchScript program");
  check(changed(0, [](ZipRecord& r) { r.data = program_of("K\x01"); }), "holds no dict of tensors");
  check(changed(2, [](ZipRecord& r) { r.data = bytes_of({0, 1, NAN, 3, 4, 5}); }),
        "tensor 't' holds nan at element 4");
  const std::string good = test::zip_of(records());
  for (std::size_t size = 4; size < good.size(); size += 7) {
    const std::string found = torch_zip_error(path, good.substr(0, size));
    CAPTURE(size, found);
    CHECK(found != "no error");
  }
}

TEST_CASE("changed zips are read or refused", "[weights][torch]") {
  const test::TempDir folder;
  std::mt19937 random(7);
  const std::string good = test::zip_of(records());
  for (int i = 0; i < 3000; ++i)
    (void)torch_zip_error(folder / "w.pth", test::mutated(good, random));
}

}  // namespace
}  // namespace dstrain
