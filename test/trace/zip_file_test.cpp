#include "engine/trace/zip_file.h"

#include <map>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/trace/analysis.h"
#include "engine/trace/merge.h"
#include "engine/trace/scanner.h"
#include "engine/trace/trace_files.h"
#include "test/support/catch.h"
#include "test/support/files.h"
#include "test/support/temp_dir.h"
#include "test/trace/made_trace.h"

using namespace dstrain;
using namespace dstrain::trace;
using dstrain::test::MadeTrace;
using dstrain::test::slurp;
using dstrain::test::spit;
using dstrain::test::TempDir;

namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

std::string little(std::uint64_t value, std::size_t width) {
  std::string bytes;
  for (std::size_t i = 0; i < width; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xFF);
  return bytes;
}

std::string deflated(const std::string& text) {
  z_stream zlib{};
  REQUIRE(::deflateInit2(&zlib, 6, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string packed(::deflateBound(&zlib, text.size()), '\0');
  zlib.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  zlib.avail_in = static_cast<uInt>(text.size());
  zlib.next_out = reinterpret_cast<Bytef*>(packed.data());
  zlib.avail_out = static_cast<uInt>(packed.size());
  REQUIRE(::deflate(&zlib, Z_FINISH) == Z_STREAM_END);
  packed.resize(zlib.total_out);
  ::deflateEnd(&zlib);
  return packed;
}

struct Packing {
  int method = 8;
  int flags = 0;
  bool zip64 = false;
  std::uint32_t crc_off = 0;
};

/// The bytes of a ZIP with these files.
std::string made_zip(const std::map<std::string, std::string>& files, const Packing& how = {}) {
  std::string zip, directory;
  for (const auto& [name, text] : files) {
    const std::string packed = how.method == 8 ? deflated(text) : text;
    const std::uint32_t crc =
        how.crc_off + static_cast<std::uint32_t>(::crc32_z(
                          0, reinterpret_cast<const Bytef*>(text.data()), text.size()));
    const auto size = [&](std::uint64_t value) { return little(how.zip64 ? ~0ULL : value, 4); };
    const std::string common = little(20, 2) + little(static_cast<unsigned>(how.flags), 2) +
                               little(static_cast<unsigned>(how.method), 2) + little(0, 4) +
                               little(crc, 4);
    const std::string extra = how.zip64 ? little(1, 2) + little(24, 2) + little(text.size(), 8) +
                                              little(packed.size(), 8) + little(zip.size(), 8)
                                        : "";
    directory += little(0x02014B50, 4) + little(20, 2) + common + size(packed.size()) +
                 size(text.size()) + little(name.size(), 2) + little(extra.size(), 2) +
                 little(0, 10) + size(zip.size()) + name + extra;
    zip += little(0x04034B50, 4) + common + little(packed.size(), 4) + little(text.size(), 4) +
           little(name.size(), 2) + little(3, 2) + name + "xyz" + packed;
  }
  const std::size_t at = zip.size();
  zip += directory;
  if (how.zip64) {
    const std::size_t end64 = zip.size();
    zip += little(0x06064B50, 4) + little(44, 8) + little(0, 12) + little(files.size(), 8) +
           little(files.size(), 8) + little(directory.size(), 8) + little(at, 8);
    zip += little(0x07064B50, 4) + little(0, 4) + little(end64, 8) + little(1, 4);
  }
  const std::string comment = "made";
  return zip + little(0x06054B50, 4) + little(0, 4) + little(files.size(), 2) +
         little(files.size(), 2) + little(how.zip64 ? ~0ULL : directory.size(), 4) +
         little(how.zip64 ? ~0ULL : at, 4) + little(comment.size(), 2) + comment;
}

std::string rank_text(int rank, int kernels = 3000) {
  MadeTrace made(rank, 2);
  made.names();
  for (int i = 0; i < kernels; ++i) {
    made.kernel("k" + std::to_string(i % 7), 7, 100'000 * i, 90'000, 2 * i, "\"action\": 0");
    made.collective("allreduce", i, 100'000 * i, 20'000, 2 * i + 1);
  }
  return made.text();
}

const char* const kActions =
    R"x({"actions": [{"name": "forward(a)", "kind": "forward", "lane": "compute", "block": "a"}]})x";

nlohmann::ordered_json analyzed(const fs::path& source) {
  auto json = to_json(analyze({source}, {.by = GroupBy::action}));
  for (auto& rank : json["ranks"]) rank.erase("file");
  return json;
}

std::string refused(const fs::path& zip, TraceUse use = TraceUse::analyze) {
  try {
    for (const fs::path& file : find_traces(std::vector{zip}, use).files) {
      Scanner scanner(file);
      Event event;
      while (scanner.next(event)) {
      }
      if (scanner.problems() > 0) return scanner.first_problems().front().what;
    }
  } catch (const Error& error) {
    return std::string(error.what()) + " / " + error.hint();
  }
  return "";
}

}  // namespace

TEST_CASE("traces in a ZIP are those of the folder, side files included", "[trace]") {
  const Packing how = GENERATE(Packing{}, Packing{.method = 0}, Packing{.zip64 = true});
  const TempDir dir;
  const fs::path folder = dir / "traces";
  fs::create_directory(folder);
  std::map<std::string, std::string> files = {{"run/recipe.yaml", "x"}, {"run/plan.json", "{}"}};
  for (int rank = 0; rank < 2; ++rank) {
    const std::string name = "rank" + std::to_string(rank);
    spit(folder / (name + "_trace.json"), rank_text(rank));
    spit(folder / (name + "_actions.json"), kActions);
    files["run/traces/" + name + "_trace.json"] = rank_text(rank);
    files["run/traces/" + name + "_actions.json"] = kActions;
    files["__MACOSX/run/traces/._" + name + "_trace.json"] = "x";
  }
  const fs::path zip = dir / "sent.zip";
  spit(zip, made_zip(files, how));
  REQUIRE(analyzed(zip) == analyzed(folder));
  REQUIRE(analyzed(zip)["kernels"].dump().find("forward(a)") != std::string::npos);

  const auto merged = [&](const fs::path& source) {
    MergeOptions options{.output = dir / "m.json"};
    const TraceSources sources = find_rank_traces(std::vector{source});
    CHECK(sources.folder == (source == zip ? dir.path() : folder));
    (void)merge_traces(sources, options);
    return slurp(dir / "m.json");
  };
  REQUIRE(merged(zip) == merged(folder));
}

TEST_CASE("of a ZIP the newest window is analyzed, other folders are refused by name", "[trace]") {
  const TempDir dir;
  const fs::path zip = dir / "sent.zip";
  spit(zip, made_zip({{"traces/step-00000100/rank0_trace.json", rank_text(0)},
                      {"traces/step-00000200/rank0_trace.json", rank_text(0)}}));
  const TracePaths found = find_traces(std::vector{zip}, TraceUse::analyze);
  REQUIRE(found.files == std::vector{zip / "traces/step-00000200/rank0_trace.json"});
  REQUIRE(found.notes.size() == 1);
  REQUIRE_THAT(refused(zip, TraceUse::merge), Contains("holds traces in 2 folders"));
  spit(zip, made_zip({{"a/rank0_trace.json", ""}, {"b/rank0_trace.json", ""}}));
  REQUIRE_THAT(refused(zip), Contains("holds traces in 2 folders") && Contains("a, b"));
  spit(zip, made_zip({{"a/notes.txt", "x"}}));
  REQUIRE_THAT(refused(zip), Contains("no trace in"));
  spit(zip, made_zip({{"../rank0_trace.json", "x"}, {"/rank1_trace.json", "x"}}));
  REQUIRE_THAT(refused(zip), Contains("no trace in"));
  // Whatever its name is.
  spit(zip, made_zip({{"one.json", rank_text(0)}}));
  REQUIRE(find_traces(std::vector{zip}, TraceUse::merge).files == std::vector{zip / "one.json"});
  // In a folder, the ZIP is named.
  REQUIRE_THAT(refused(dir.path()), Contains("name the ZIP") && Contains("sent.zip"));
}

TEST_CASE("a ZIP that is broken or packed otherwise says so", "[trace]") {
  const TempDir dir;
  const fs::path zip = dir / "sent.zip";
  const std::map<std::string, std::string> files = {{"rank0_trace.json", rank_text(0, 30)}};
  const auto refused_as = [&](const Packing& how) {
    spit(zip, made_zip(files, how));
    return refused(zip);
  };
  REQUIRE(refused_as({}).empty());
  REQUIRE_THAT(refused_as({.flags = 1}), Contains("is encrypted"));
  REQUIRE_THAT(refused_as({.method = 9}), Contains("is packed by method 9"));
  REQUIRE_THAT(refused_as({.crc_off = 1}), Contains("checksum"));
  REQUIRE_THAT(refused_as({.method = 0, .crc_off = 1}), Contains("checksum"));
  spit(zip, made_zip({{"rank0_trace.json", made_zip(files)}}));
  REQUIRE_THAT(refused(zip), Contains("a ZIP inside of a ZIP"));
  const std::string whole = made_zip(files);
  for (std::size_t cut = 1; cut < 100; ++cut) {
    spit(zip, whole.substr(0, whole.size() - cut));
    REQUIRE_THAT(refused(zip), Contains("its end is cut off"));
  }
  // A byte that is wrong anywhere ends in a message, never in another trace.
  const auto read = [&] {
    std::string objects;
    const auto found = find_traces(std::vector{zip}, TraceUse::analyze);
    Scanner scanner(found.files.at(0));
    Event event;
    while (scanner.next(event)) objects += event.object;
    return scanner.problems() > 0 ? "" : objects;
  };
  spit(zip, whole);
  const std::string objects = read();
  for (std::size_t at = 0; at < whole.size(); at += 1 + at % 97) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x41);
    spit(zip, damaged);
    try {
      const std::string now = read();
      CHECK((now.empty() || now == objects));
    } catch (const Error&) {
    }
  }
}
