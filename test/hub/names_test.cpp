#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <string>

#include "engine/base/error.h"
#include "engine/hub/cache.h"
#include "engine/hub/digest.h"
#include "engine/hub/repository.h"

namespace dstrain::hub {
namespace {

const std::string kSha1(40, 'a');
const std::string kSha256(64, 'b');

std::string tree_of(const std::string& path) {
  return fmt::format(R"([{{"type":"file","path":"{}","size":3,"oid":"{}"}}])", path, kSha1);
}

TEST_CASE("a name of the Hub has owner, repository, revision and file", "[hub]") {
  const auto name = parse_hub_name("hf://Qwen/Qwen2.5-3B@v1/sub/config.json");
  REQUIRE(name);
  CHECK(name->id == "Qwen/Qwen2.5-3B");
  CHECK(name->revision == "v1");
  CHECK(name->file == "sub/config.json");
  CHECK_FALSE(name->dataset);
  CHECK(name->text() == "hf://Qwen/Qwen2.5-3B@v1/sub/config.json");
  const auto data =
      parse_hub_name("hf://datasets/meta-math/MetaMathQA@refs/convert/parquet/a.parquet");
  REQUIRE(data);
  CHECK(data->dataset);
  CHECK(data->revision == "refs/convert/parquet");
  CHECK(data->file == "a.parquet");
  CHECK_FALSE(parse_hub_name("Qwen/Qwen2.5-3B"));
}

TEST_CASE("names that could lead elsewhere are refused", "[hub]") {
  const auto* text =
      GENERATE("hf://", "hf://a", "hf://../b", "hf://a/..", "hf://a/b@../../c", "hf://a/b@",
               "hf://a/b/../c", "hf://a/b//c", "hf://a/b c", "hf://a/b@x y", "hf://a--b/c",
               "hf://-a/b", "hf://a/b/c\n", "hf://a/b?x", "hf://a@b/c", "hf://a/b@refs/pr");
  CAPTURE(text);
  CHECK_THROWS_AS(parse_hub_name(text), Error);
}

TEST_CASE("only ORG/NAME can be a bare name, and no folder that recipes look in", "[hub]") {
  for (const char* text : {"Qwen/Qwen2.5-3B", "a/b@main"}) CHECK(is_bare_name(text));
  for (const char* text : {"", "a", "a/b/c", "./a", "/a/b", "models/a", "data/squad", "~/a", "a/"})
    CHECK_FALSE(is_bare_name(text));
}

TEST_CASE("a path in another host's cache is a name", "[hub]") {
  const auto model = name_of_snapshot("/home/a/hub/models--Qwen--Qwen2.5-3B/snapshots/" + kSha1);
  REQUIRE(model);
  CHECK(model->text() == "hf://Qwen/Qwen2.5-3B@" + kSha1);
  const auto data = name_of_snapshot("hub/datasets--a--b/snapshots/" + kSha1 + "/c/d.jsonl");
  REQUIRE(data);
  CHECK(data->text() == "hf://datasets/a/b@" + kSha1 + "/c/d.jsonl");
  for (const std::string& path :
       {std::string("models/Qwen2.5-3B"), "models--a/snapshots/" + kSha1, "snapshots/" + kSha1,
        "models--a--b/blobs/" + kSha1, std::string("models--a--b/snapshots/main"),
        "models--..--b/snapshots/" + kSha1, "models--a--b/snapshots/" + kSha1 + "/../x"}) {
    CAPTURE(path);
    CHECK_FALSE(name_of_snapshot(path));
  }
}

TEST_CASE("a path of a repository stays below its folder", "[hub]") {
  for (const char* path : {"a", "a/b.json", "1_Pooling/config.json", "\xc3\xa9/a"})
    CHECK(is_safe_path(path));
  for (const std::string& path :
       {std::string(), std::string("/a"), std::string("../a"), std::string("a/../../b"),
        std::string("a/.."), std::string("a//b"), std::string("a/"), std::string("./a"),
        std::string("a\nb"), std::string("a\x1b[2J"), std::string("a\\b"), std::string("a\0b", 3),
        std::string(256, 'a'), std::string("\xff")})
    CHECK_FALSE(is_safe_path(path));
}

TEST_CASE("a list of files gives sizes and digests", "[hub]") {
  const auto files = parse_tree(fmt::format(R"([{{"type":"directory","path":"d","oid":"{0}"}},
                      {{"type":"file","path":"d/config.json","size":12,"oid":"{0}"}},
                      {{"type":"file","path":"m.safetensors","size":134,"oid":"{0}",
                        "lfs":{{"oid":"{1}","size":5000000000,"pointerSize":134}}}}])",
                                            kSha1, kSha256),
                                "tree");
  REQUIRE(files.size() == 2);
  CHECK(files[0].path == "d/config.json");
  CHECK(files[0].size == 12);
  CHECK(files[0].hash == Hash::sha1);
  CHECK(files[1].size == 5'000'000'000);
  CHECK(files[1].hash == Hash::sha256);
  CHECK(files[1].digest == kSha256);
}

TEST_CASE("a list of files that no repository has is refused", "[hub]") {
  for (const std::string& text :
       {std::string("{}"), std::string("[1]"), std::string("["), std::string("[{}]"),
        tree_of("../../.bashrc"), tree_of("/etc/passwd"), tree_of("a\\u0000b"),
        std::string(R"([{"type":"file","path":"a","size":-1,"oid":")" + kSha1 + "\"}]"),
        std::string(R"([{"type":"file","path":"a","size":3,"oid":"../x"}])"),
        std::string(R"([{"type":"file","path":"a","size":3,"oid":")" + kSha1 +
                    R"(","lfs":{"oid":"../../x","size":3}}])"),
        std::string(R"([{"type":"file","path":"a","size":1e300,"oid":")" + kSha1 + "\"}]")}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_tree(text, "tree"), Error);
  }
  CHECK(parse_tree(tree_of("a"), "tree").size() == 1);
  for (const char* text : {"{}", R"({"sha":"main"})", R"({"sha":3})", "[]", ""})
    CHECK_THROWS_AS(parse_commit(text, "revision"), Error);
  CHECK(parse_commit("{\"sha\":\"" + kSha1 + "\"}", "revision") == kSha1);
}

std::vector<std::string> chosen(const std::vector<std::string>& paths, Use use,
                                const std::string& file = "") {
  std::vector<HubFile> files;
  for (const std::string& path : paths)
    files.push_back({.path = path, .size = 1, .hash = Hash::sha1, .digest = kSha1});
  HubName name;
  name.id = "a/b";
  name.file = file;
  std::vector<std::string> names;
  for (const HubFile& one : wanted_files(files, name, use)) names.push_back(one.path);
  return names;
}

TEST_CASE("weights are safetensors where they are there, and no code", "[hub]") {
  using Names = std::vector<std::string>;
  const Names both = {"README.md",
                      "config.json",
                      "model-00001-of-00002.safetensors",
                      "model-00002-of-00002.safetensors",
                      "model.safetensors.index.json",
                      "modeling_x.py",
                      "pytorch_model.bin",
                      "tokenizer.json",
                      "onnx/model.onnx",
                      "model.fp16.safetensors"};
  CHECK(chosen(both, Use::weights) == Names{"config.json", "model-00001-of-00002.safetensors",
                                            "model-00002-of-00002.safetensors",
                                            "model.safetensors.index.json", "tokenizer.json"});
  CHECK(chosen({"config.json", "pytorch_model.bin"}, Use::weights) ==
        Names{"config.json", "pytorch_model.bin"});
  CHECK(chosen(both, Use::config) == Names{"config.json"});
  CHECK(chosen(both, Use::weights, "README.md") == Names{"README.md"});
  CHECK_THROWS_AS(chosen(both, Use::weights, "none"), Error);
  CHECK_THROWS_AS(chosen({"README.md"}, Use::weights), Error);
  CHECK(chosen({"a.json", "plain_text/b.parquet", ".x/c.json", "d.py"}, Use::data) ==
        Names{"a.json", "plain_text/b.parquet"});
}

TEST_CASE("digests are those that others compute", "[hub]") {
  Digest git = Digest::of_git_blob(12);
  git.add("hello ");
  git.add("world\n");
  CHECK(git.hex() == "3b18e512dba79e4c8300dd08aeb37f8e728b8dad");  // git hash-object
  Digest sha256(Hash::sha256);
  sha256.add("abc");
  CHECK(sha256.hex() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Digest md5(Hash::md5);
  md5.add("abc");
  CHECK(md5.hex() == "900150983cd24fb0d6963f7d28e17f72");
}

}  // namespace
}  // namespace dstrain::hub
