#include "launcher/job/submit.h"

#include <cstdlib>
#include <sstream>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "test/recipe/golden.h"
#include "test/support/catch.h"

using namespace dstrain;
using namespace dstrain::launcher;

namespace {

SubmitOptions some_job() {
  return {.recipe_name = "quickstart",
          .recipe = "model: {}\n",
          .output = "/shared/runs",
          .program = FAKE_DSTRAIN,
          .working_directory = "/shared/it's here",
          .nodes = 4,
          .gpus_per_node = 8,
          .time = "12:00:00",
          .partition = "gpu",
          .account = "team a",
          .qos = "long",
          .sbatch = {"--exclusive", "--comment=a b; touch canary"},
          .launch = {"--max-restarts", "3", "--env", "GREETING=it's $(touch canary)"}};
}

}  // namespace

TEST_CASE("the batch script quotes what people gave and says all of it",
          "[launcher][slurm][golden]") {
  dstrain::test::compare_with_file(batch_script(some_job(), "/shared/runs/quickstart-slurm-T-1"),
                                   "test/launcher/golden/job.sbatch");
}

TEST_CASE("a line break cannot become a line of the batch script", "[launcher][slurm]") {
  SubmitOptions options = some_job();
  options.sbatch = {"--comment=x\n#SBATCH --uid=0"};
  CHECK_THROWS_AS(batch_script(options, "/shared/runs/x"), Error);
  options = some_job();
  options.working_directory = "/shared/a\nb";
  CHECK_THROWS_AS(batch_script(options, "/shared/runs/x"), Error);
}

TEST_CASE("secrets stand neither in the batch script nor beside it", "[launcher][slurm]") {
  ::setenv("SUBMIT_TEST_TOKEN", "canary-4711-value", 1);
  SubmitOptions options = some_job();
  CHECK_NOTHROW(refuse_secrets(options));
  options.launch = {"--env", "SUBMIT_TEST_TOKEN"};
  CHECK_NOTHROW(refuse_secrets(options));
  options.recipe = "run: {name: canary-4711-value}";
  CHECK_THROWS_WITH(refuse_secrets(options),
                    Catch::Contains("SUBMIT_TEST_TOKEN") && !Catch::Contains("canary-4711-value"));
  ::unsetenv("SUBMIT_TEST_TOKEN");
  options = some_job();
  options.launch = {"--env", "OTHER_API_KEY=canary-4712-value"};
  CHECK_THROWS_WITH(refuse_secrets(options),
                    Catch::Contains("OTHER_API_KEY") && !Catch::Contains("canary-4712-value"));
}

TEST_CASE("the scripts in slurm/ wait, hand on signals and requeue as the generated one",
          "[launcher][slurm]") {
  const std::string script = batch_script(some_job(), "/shared/runs/x");
  std::istringstream common(script.substr(script.find("\"$@\" &")));
  const std::string name = GENERATE(as<std::string>{}, "train", "array");
  const std::string written = read_file("slurm/" + name + ".sbatch");
  std::size_t at = written.find("\"$@\" &\n");
  for (std::string line; std::getline(common, line);) {
    CAPTURE(name, line);
    at = written.find(line + "\n", at);
    REQUIRE(at != std::string::npos);
  }
}
