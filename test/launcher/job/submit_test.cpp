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

TEST_CASE("the printed script stands alone: recipe, setup and launch",
          "[launcher][slurm][golden]") {
  SubmitOptions options = some_job();
  options.program = "/opt/dstrain/bin/dstrain";
  options.gpu_type = "a100";
  options.sbatch.emplace_back("--comment=it's a \\ b");
  options.setup = "module load cuda\nset -e\nsource /shared/env/bin/activate";
  dstrain::test::compare_with_file(printed_script(options), "test/launcher/golden/printed.sbatch");
  options.resume = "/shared/runs/an old one";
  CHECK_THAT(printed_script(options), Catch::Contains("--resume '/shared/runs/an old one'"));
  options.recipe = "a: |\n  END_OF_RECIPE\n";
  CHECK_THAT(printed_script(options), Catch::Contains("\nEND_OF_RECIPE_\n"));
}

TEST_CASE("no text that people give ends its line of the batch script", "[launcher][slurm]") {
  const std::string hostile = "x\ntouch PWN\n#";
  const auto refused = [](const SubmitOptions& options) {
    CHECK_THROWS_WITH(batch_script(options, "/shared/runs/x"), Catch::Contains("line break"));
    CHECK_THROWS_WITH(printed_script(options), Catch::Contains("line break"));
  };
  for (const auto member :
       {&SubmitOptions::time, &SubmitOptions::partition, &SubmitOptions::account,
        &SubmitOptions::qos, &SubmitOptions::gpu_type, &SubmitOptions::recipe_name}) {
    for (const std::string& text : {hostile, std::string("x\ry"), std::string("x\0y", 3)}) {
      SubmitOptions options = some_job();
      options.*member = text;
      refused(options);
    }
  }
  SubmitOptions options = some_job();
  options.sbatch = {"--comment=x\n#SBATCH --uid=0"};
  refused(options);
  options = some_job();
  options.working_directory = "/shared/a\nb";
  refused(options);
  options = some_job();
  options.sbatch = {"hetjob"};
  CHECK_THAT(batch_script(options, "/shared/runs/x"), Catch::Contains("#SBATCH 'hetjob'\n"));
  options.sbatch = {""};
  CHECK_THROWS_AS(printed_script(options), Error);
}

TEST_CASE("lines of setup hold neither options of sbatch nor secrets", "[launcher][slurm]") {
  SubmitOptions options = some_job();
  for (const char* line : {"#SBATCH --uid=0\n", "true\n#PBS -l x", "true\r\n"}) {
    options.setup = line;
    CHECK_THROWS_AS(printed_script(options), Error);
  }
  options.setup = "export A=1 OTHER_API_KEY='canary-4713'\n";
  CHECK_THROWS_WITH(refuse_secrets(options),
                    Catch::Contains("OTHER_API_KEY") && !Catch::Contains("canary-4713"));
  options.setup = "export OTHER_API_KEY=$(cat key) HF_TOKEN=\"$X\"\n";
  CHECK_NOTHROW(refuse_secrets(options));
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
