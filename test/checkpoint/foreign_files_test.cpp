#include "engine/checkpoint/foreign_files.h"

#include <cstring>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "test/checkpoint/checkpoint_support.h"
#include "test/support/catch.h"
#include "test/support/files.h"
#include "test/support/temp_dir.h"
#include "test/support/torch_file.h"

namespace dstrain {
namespace {

using namespace std::string_literals;

/// A file of torch.save with one tensor, whose records stand under `archive`.
void write_torch(const fs::path& path, const std::string& archive,
                 const std::vector<std::int64_t>& shape, const std::vector<float>& values) {
  std::string bytes(4 * values.size(), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  const std::string tensor =
      test::pickled_tensor("0", shape, strides, 0, static_cast<std::int64_t>(values.size()));
  test::spit(path, test::zip_of({{archive + "/data.pkl", test::program_of(tensor)},
                                 {archive + "/data/0", bytes}}));
}

TEST_CASE("files of a folder that changed places are refused by the names inside",
          "[checkpoint][import]") {
  const test::TempDir folder;
  const auto error_of = [&](const char* name) -> std::string {
    try {
      (void)open_torch(folder / name);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::data);
      return error.what();
    }
    return "";
  };
  for (const char* name : {"a", "b", "archive"})
    write_torch(folder / (std::string(name) + ".pt"), name, {1}, {1});
  for (const char* name : {"a.pt", "b.pt", "archive.pt"}) CHECK(error_of(name).empty());
  write_torch(folder / "a.pt", "b", {1}, {1});
  CHECK(test::contains(error_of("a.pt"), "a.pt was written as b.pt"));
  // One that was renamed, or written to a stream.
  write_torch(folder / "a.pt", "c", {1}, {1});
  CHECK(error_of("a.pt").empty());
  write_torch(folder / "a.pt", "archive", {1}, {1});
  CHECK(error_of("a.pt").empty());
}

TEST_CASE("a tensor in column chunks is read in any pieces", "[checkpoint][import]") {
  const test::TempDir folder;
  const std::vector<std::int64_t> shape = {4, 6};
  ForeignTensor whole(shape);
  std::vector<float> expected(24);
  for (const auto& [first, columns] : {std::pair{2, 3}, {0, 2}, {5, 1}}) {
    std::vector<float> values;
    for (int row = 0; row < 4; ++row) {
      for (int c = first; c < first + columns; ++c) {
        values.push_back(static_cast<float>(10 * row + c));
        expected[static_cast<std::size_t>(6 * row + c)] = values.back();
      }
    }
    const fs::path path = folder / (std::to_string(first) + ".pt");
    write_torch(path, "archive", {4, columns}, values);
    const TorchFile file = open_torch(path);
    whole.add_box({shape, {0, first}, {4, columns}}, tensor_of(file, file->root(), "w"));
  }
  for (std::int64_t begin = 0; begin < 24; ++begin) {
    for (std::int64_t end = begin + 1; end <= 24; ++end) {
      std::vector<float> found(static_cast<std::size_t>(end - begin), -1);
      whole.will_read({begin, end});
      whole.read(begin, found);
      REQUIRE(found == std::vector<float>(expected.begin() + begin, expected.begin() + end));
    }
    const std::int64_t column = begin % 6;
    const char* file = column < 2 ? "0.pt" : column < 5 ? "2.pt" : "5.pt";
    REQUIRE(whole.file_of(begin) == (folder / file).string());
  }
}

}  // namespace
}  // namespace dstrain
