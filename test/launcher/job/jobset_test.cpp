#include "launcher/job/jobset.h"

#include "engine/base/error.h"
#include "test/recipe/golden.h"
#include "test/support/catch.h"

using namespace dstrain;
using namespace dstrain::launcher;

namespace {

JobsetOptions some_job() {
  return {.name = "vit-base-zero2",
          .recipe = "# vit\nmodel:\n  name: vit-base  # a comment\n\n  note: \"it's\"\n",
          .image = "example.org/team/dstrain:1.0@sha256:0a",
          .claim = "workspace",
          .rdma_resource = "rdma/ib",
          .nodes = 4,
          .gpus_per_node = 8,
          .launch = {"--max-restarts", "3", "--env", "GREETING=it's \"$(x)\": {a}\n"}};
}

}  // namespace

TEST_CASE("the manifest quotes what people gave and says all of it", "[launcher][jobset][golden]") {
  dstrain::test::compare_with_file(jobset_manifest(some_job()), "test/launcher/golden/jobset.yaml");
}

TEST_CASE("a recipe that no block of YAML holds is quoted", "[launcher][jobset]") {
  JobsetOptions job = some_job();
  job.recipe = "a: \x1b[31m\n";
  CHECK_THAT(jobset_manifest(job), Catch::Contains(R"(  recipe.yaml: "a: \u001b[31m\n")"));
}

TEST_CASE("a JobSet has a name that Kubernetes takes", "[launcher][jobset]") {
  CHECK(jobset_name("vit-base_cifar100_zero2") == "vit-base-cifar100-zero2");
  CHECK(jobset_name("Qwen2.5-3B__metamathqa-") == "qwen2-5-3b-metamathqa");
  CHECK(jobset_name("3d") == "d");
  CHECK(jobset_name(std::string(100, 'a')) == std::string(40, 'a'));
  CHECK(jobset_name(std::string(39, 'a') + "-b") == std::string(39, 'a'));
  CHECK_THROWS_WITH(jobset_name("123"), "'123' has no letter for the name of a JobSet");
}

TEST_CASE("what a manifest cannot hold is refused by its option", "[launcher][jobset]") {
  const auto refused = [](const auto& change) -> std::string {
    JobsetOptions job = some_job();
    change(job);
    try {
      (void)jobset_manifest(job);
      return "no error";
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::usage);
      return error.what();
    }
  };
  CHECK(refused([](auto& job) { job.image = "a b"; }) == "--image 'a b' is no such name");
  CHECK(refused([](auto& job) { job.image = ""; }) == "--image '' is no such name");
  CHECK(refused([](auto& job) { job.claim = "x\"y"; }) == "--claim 'x\"y' is no such name");
  CHECK(refused([](auto& job) { job.rdma_resource = "a: b\n"; }) ==
        "--rdma-resource 'a: b\\x0a' is no such name");
  CHECK(refused([](auto& job) {
          job.launch = {"--env", "A=\xff"};
        }) == "'A=\\xff' is not UTF-8; a manifest is");
  CHECK_THAT(refused([](auto& job) { job.recipe = std::string(2'000'000, 'a'); }),
             Catch::Contains("a ConfigMap holds 1 MiB"));
}
