#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/import/secrets.h"
#include "test/import/sources.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using importing::Imported;
using importing::ImportOptions;

ImportOptions of_script(const std::string& lines) {
  return test::options_of({{"job.sbatch", "#!/bin/bash\n" + lines}});
}
/// Words of the launch behind --slurm, or "!" and the messages.
std::string launch_of(const ImportOptions& options) {
  try {
    const Imported imported = importing::import_settings(options);
    const std::string words = fmt::format("{}", fmt::join(imported.launch, " "));
    return words == "--slurm" ? "" : words.substr(words.find(' ') + 1);
  } catch (const Error& error) {
    return std::string("!") + error.what();
  }
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct ScriptCase {
  const char* lines;   ///< behind "#!/bin/bash"
  const char* launch;  ///< words behind --slurm; "!...": a part of the messages
};

void check_cases(std::initializer_list<ScriptCase> cases) {
  for (const ScriptCase& one : cases) {
    CAPTURE(one.lines);
    const std::string launch = launch_of(of_script(one.lines));
    if (one.launch[0] == '!')
      CHECK((launch[0] == '!' && says(launch, one.launch + 1)));
    else
      CHECK(launch == one.launch);
  }
}

}  // namespace

TEST_CASE("#SBATCH lines are read as sbatch reads them", "[import][sbatch]") {
  check_cases({
      {"#SBATCH -N 4\n\n# x\n  # y\n#SBATCH -p big\n", "--partition big --nodes 4"},
      {"#SBATCH -N4 -pbig\n", "--partition big --nodes 4"},
      {"#SLURM --nodes=4\n", "--nodes 4"},
      {"#SBATCH -N 2\ntrue\n#SBATCH -N 4\n", "--nodes 2"},
      {" #SBATCH -N 4\n", ""},
      {"##SBATCH -N 4\n", ""},
      {"#SBATCH -N 4#four\n", "--nodes 4"},
      {"#SBATCH -N 4 # -N 5\n", "--nodes 4"},
      {"#SBATCH -N 4 \\\n#SBATCH -p big\n", "--partition big --nodes 4"},
      {"#SBATCH --time\n#SBATCH 10:00\n", "--time=10:00"},
      {"#SBATCH -N 4 --\n", "--nodes 4"},
      {"#SBATCH --comment=\"a #b\"\n", "--sbatch=--comment=a #b"},
      {"#SBATCH --comment='it\\'s'\\#1\n", "--sbatch=--comment=it's#1"},
      {"#SBATCH -C a100|v100\n", "--sbatch=--constraint=a100|v100"},
      {"#SBATCH --constraint=gpu&hbm80g\n", "--sbatch=--constraint=gpu&hbm80g"},
      {"#SBATCH --mem=0 -H --exclusive\n", "--sbatch=--mem=0 --sbatch=--hold --sbatch=--exclusive"},
      {"#SBATCH --comment \"\" -N 4\n", "!job.sbatch:2:1: error: #SBATCH: sbatch ends the line"},
      {"#SBATCH --comment=a\\ b\n", "!versions of Slurm differ"},
      {"#SBATCH --comment='a\n", "!a quote (') without its end"},
      {"#SBATCH -N 4\n#SBATCH hetjob\n#SBATCH -N 2\n", "!hetjob"},
      {"#SBATCH : -N 2\n", "!begins with ':'"},
      {"#SBATCH -N 4 foo\n", "!foo is no option"},
      {"#SBATCH -N 4 -- -p\n", "!-p is no option"},
      {"#SBATCH --exclusive user\n", "!user is no option"},
      {"#SBATCH --hold=yes\n", "!--hold takes no value"},
      {"#SBATCH --time\n", "!--time has no value"},
      {"#SBATCH --partit=big\n", "!write --partition"},
      {"#SBATCH --nodez=2\n", "!job.sbatch:2:1: error: nodez: #SBATCH has no such key"},
      {"#SBATCH --mem_per_cpu=2\n", "!write --mem-per-cpu"},
      {"#SBATCH -N 4\r\n", "!lines that end as on DOS"},
      {"#PBS -l nodes=2\n", "!lines of PBS"},
  });
  ImportOptions options = test::options_of({{"job.sbatch", "#SBATCH -N 4\n"}});
  CHECK(says(launch_of(options), "first line begins with #!"));
}

TEST_CASE("nodes, tasks and GPUs are those that Slurm gives", "[import][sbatch]") {
  check_cases({
      {"#SBATCH -N 2 --gres=gpu:v100:4,nvme:200\n",
       "--sbatch=--gres=nvme:200 --nodes 2 --gpus-per-node v100:4"},
      {"#SBATCH -N 2 --gres=gpu\n", "--nodes 2 --gpus-per-node 1"},
      {"#SBATCH -N 2 --gres=gpu:a100\n", "--nodes 2 --gpus-per-node a100:1"},
      {"#SBATCH -N 2 --gres=gpu:1,gpu:3\n", "--nodes 2 --gpus-per-node 4"},
      {"#SBATCH -N 2 --gres=gpu_mem:20\n", "--sbatch=--gres=gpu_mem:20 --nodes 2"},
      {"#SBATCH -N 2 --gres=none\n", "--nodes 2"},
      {"#SBATCH -N 2 --gpus-per-node=4#four\n", "--nodes 2 --gpus-per-node 4"},
      {"#SBATCH -N 2 --gpus-per-node=a100:4\n", "--nodes 2 --gpus-per-node a100:4"},
      {"#SBATCH -N 2 -G 8\n", "--nodes 2 --gpus-per-node 4"},
      {"#SBATCH -N 2 --ntasks-per-node=8 --gpus-per-task=1\n",
       "--sbatch=--cpus-per-task=8 --nodes 2 --gpus-per-node 8"},
      {"#SBATCH -N 2 -n 8 --gpus-per-task=1\n",
       "--sbatch=--cpus-per-task=4 --nodes 2 --gpus-per-node 4"},
      {"#SBATCH -N 2 -n 8 --ntasks-per-gpu=1\n",
       "--sbatch=--cpus-per-task=4 --nodes 2 --gpus-per-node 4"},
      {"#SBATCH -N 2 --gpus=8 --gres=gpu:4 --gpus-per-node=4\n", "--nodes 2 --gpus-per-node 4"},
      {"#SBATCH -N 2 --ntasks-per-node=4 -c 6 --gpus-per-node=4\n",
       "--sbatch=--cpus-per-task=24 --nodes 2 --gpus-per-node 4"},
      {"#SBATCH -N 2 --tasks-per-node=4 -c 6\n",
       "--sbatch=--cpus-per-task=6 --nodes 2 --ranks-per-node 4"},
      {"#SBATCH -n 8 --ntasks-per-node=4\n", "--nodes 2 --ranks-per-node 4"},
      {"#SBATCH -n 8\n", "--nodes 1 --ranks-per-node 8"},
      {"#SBATCH -N 2-2 -n 8\n", "--nodes 2 --ranks-per-node 4"},
      {"#SBATCH -N 2-4\n", "!2-4 is not one number of nodes"},
      {"#SBATCH -w n[1-4]\n", "!say their number"},
      {"#SBATCH -N 2 -w n[1-2]\n", "--sbatch=--nodelist=n[1-2] --nodes 2"},
      {"#SBATCH -N 4 -n 2\n", "!2 tasks on 4 nodes"},
      {"#SBATCH -N 4 -n 6\n", "!6 tasks on 4 nodes"},
      {"#SBATCH -N 3 -G 16\n", "!16 GPUs on 3 nodes"},
      {"#SBATCH -N 2 --gres=gpu:4 --gpus-per-node=2\n", "!4 GPUs of a node here, but 2 in"},
      {"#SBATCH -N 2 --gres=gpu:a100:2,gpu:v100:2\n", "!GPUs of two types"},
      {"#SBATCH -N 2 --gres=gpu:a100:4 -G 8\n", "!any GPUs here, a100 in"},
      {"#SBATCH -N 2 --gpus-per-node=4k\n", "!4k is no number of GPUs"},
      {"#SBATCH -N 2 --gpus-per-node=0\n", "!0 is no number of GPUs"},
      {"#SBATCH -N 2 --gpus-per-task=1\n", "!no number of tasks"},
      {"#SBATCH -N 2 --ntasks-per-node=2 --gpus-per-node=8\n", "!2 tasks and 8 GPUs on each node"},
      {"#SBATCH -N 2 --ntasks-per-gpu=2 -G 4\n", "!but only 1 is taken"},
      {"#SBATCH -n 1e1\n", "!1e1 is no number from 1"},
  });
}

TEST_CASE("a signal keeps its time, and times are those of sbatch", "[import][sbatch]") {
  check_cases({
      {"#SBATCH --signal=SIGUSR1@600\n", "--sbatch=--signal=B:USR1@600"},
      {"#SBATCH --signal=B:TERM\n", "--sbatch=--signal=B:USR1@60"},
      {"#SBATCH --signal=10@0\n", "--sbatch=--signal=B:USR1@0"},
      {"#SBATCH --signal=RB:usr2@90\n", "--sbatch=--signal=RB:USR1@90"},
      {"#SBATCH --signal=B:USR1@120\n", ""},
      {"#SBATCH --signal=USR1@70000\n", "!is not [R][B]:SIGNAL[@SECONDS]"},
      {"#SBATCH --signal=SOON@60\n", "!is not [R][B]:SIGNAL[@SECONDS]"},
      {"#SBATCH -t 2-12\n", "--time=2-12"},
      {"#SBATCH -t infinite\n", "--time=infinite"},
      {"#SBATCH -t -1\n", "--time=-1"},
      {"#SBATCH -t 2h\n", "!2h is no time limit"},
      {"#SBATCH -t 1:2:3:4\n", "!is no time limit"},
  });
}

TEST_CASE("options that place tasks have no effect, others reach sbatch", "[import][sbatch]") {
  check_cases({
      {"#SBATCH --distribution=block:cyclic,NoPack --gpu-bind=closest --no-kill -v -W\n", ""},
      {"#SBATCH --nice --get-user-env=10L --no-kill=off\n",
       "--sbatch=--nice --sbatch=--get-user-env=10L --sbatch=--no-kill=off"},
      {"#SBATCH --nice=-5\n", "--sbatch=--nice=-5"},
      {"#SBATCH --exclusive=user --propagate=NONE\n",
       "--sbatch=--exclusive=user --sbatch=--propagate=NONE"},
      {"#SBATCH --distribution=arbitrary\n", "!arbitrary is none of its values"},
      {"#SBATCH --gpu-bind=near\n", "!near is none of its values"},
      {"#SBATCH --gpus-per-socket=2\n", "!say --gpus-per-node"},
      {"#SBATCH --test-only\n", "!nothing would be submitted"},
  });
}

TEST_CASE("the launcher's command in a script says its ranks", "[import][sbatch]") {
  const auto global = [](const std::string& lines, const char* command = "") {
    ImportOptions options = of_script(lines);
    options.command = command;
    try {
      const std::string recipe = importing::import_settings(options).recipe;
      const std::size_t at = recipe.find("global: ");
      return at == std::string::npos ? std::string("none")
                                     : recipe.substr(at + 8, recipe.find(' ', at + 8) - at - 8);
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  const std::string eight = "#SBATCH -N 2 --gpus-per-node=8\n";
  const std::string micro = " t.py --per_device_train_batch_size 4\n";
  CHECK(global(eight + "srun torchrun --nnodes 2 --nproc_per_node 4" + micro) == "32");
  CHECK(global(eight + "srun torchrun --nnodes $SLURM_NNODES --nproc_per_node=8" + micro) == "64");
  CHECK(global(eight + "N=4\nexport L=\"torchrun --nnodes 2 \\\n --nproc_per_node ${N}\"\nsrun $L" +
               micro) == "32");
  CHECK(global(eight + "srun bash -c 'torchrun --nnodes $SLURM_JOB_NUM_NODES --nproc_per_node 4 "
                       "t.py --per_device_train_batch_size 4' >log 2>&1 &\nwait\n") == "32");
  CHECK(global(eight + "accelerate launch --num_machines 2 --num_processes $((SLURM_NNODES * 4))" +
               micro) == "32");
  CHECK(global(eight + "deepspeed --num_nodes 2 --num_gpus 4" + micro) == "32");
  CHECK(global(eight + "pip install deepspeed accelerate\nsrun torchrun --nnodes 2 "
                       "--nproc_per_node 4 t.py --per_device_train_batch_size 4\n") == "32");
  CHECK(global(eight + "srun torchrun --nnodes 2 --nproc_per_node 4" + micro,
               "torchrun --nnodes 2 --nproc_per_node 2 t.py --per_device_train_batch_size 4") ==
        "16");
  CHECK(global(eight + "srun torchrun --nnodes 2 --nproc_per_node $(nvidia-smi -L | wc -l)" +
               micro) == "64");
  CHECK(says(global(eight + "torchrun a.py\ntorchrun b.py\n"),
             "job.sbatch:4:1: error: a second command that starts ranks"));
  const Imported imported = importing::import_settings(
      of_script(eight + "module load cuda\nsrun torchrun --nnodes 2 --nproc_per_node 4" + micro));
  CHECK(fmt::format("{}", fmt::join(imported.launch, " ")) ==
        "--slurm --nodes 2 --gpus-per-node 4");
  CHECK(imported.unread == std::vector<std::string>{"job.sbatch:3: module load cuda"});
  REQUIRE(imported.notes.size() == 1);
  CHECK(says(imported.notes[0], "asks for 8 GPUs of a node"));
  CHECK(imported.keys[0].origin() == "job.sbatch:4");
}

TEST_CASE("an import shows and copies no secret", "[import][secrets]") {
  struct Shown {
    const char* text;
    const char* shown;
  };
  for (const Shown& one : std::initializer_list<Shown>{
           {"export A=1 WANDB_API_KEY=xyz B=2", "export A=1 WANDB_API_KEY (not shown)"},
           {"srun t.py --hf_token xyz", "srun t.py --hf_token (not shown)"},
           {"srun t.py --token=xyz", "srun t.py --token (not shown)"},
           {"srun t.py --hub-token 'xyz'", "srun t.py --hub-token (not shown)"},
           {"wandb login xyz", "wandb login (not shown)"},
           {"wandb login --relogin xyz", "wandb login --relogin (not shown)"},
           {"curl -H 'Authorization: Bearer xyz' u", "curl -H 'Authorization: Bearer (not shown)"},
           {"git clone https://me:xyz@h/r", "git clone https://me: (not shown)"},
           {"git clone https://ghp_0123456789@h/r", "git clone https:// (not shown)"},
           {"export NCCL_AUTH=xyz", "export NCCL_AUTH (not shown)"},
           {"export CUDA_PASSPHRASE=xyz", "export CUDA_PASSPHRASE (not shown)"},
           {"git clone ssh://git@h:22/r", "git clone ssh://git@h:22/r"},
           {"curl http://h:8080/token", "curl http://h:8080/token"},
           {"export HF_TOKEN", "export HF_TOKEN"},
           {"ALL,WANDB_API_KEY,B=1", "ALL,WANDB_API_KEY,B=1"},
       })
    CHECK(importing::without_secrets(one.text) == one.shown);

  ImportOptions options = of_script(
      "#SBATCH -N 1 --export=ALL,WANDB_API_KEY=xyz,B=1 --comment=https://me:xyz@h/\n"
      "wandb login xyz\nHTTPS_PROXY=http://me:xyz@proxy torchrun --nnodes 1 --nproc_per_node 2 "
      "t.py --token=xyz --url https://me:xyz@h --per_device_train_batch_size 4\n");
  const Imported imported = importing::import_settings(options);
  const std::string all = importing::report_markdown(imported, "r.yaml") +
                          importing::report_json(imported) + imported.recipe +
                          importing::launch_line(imported, "r.yaml") +
                          fmt::format("{}", fmt::join(imported.notes, " "));
  CHECK(all.find("xyz") == std::string::npos);
  for (const char* part : {"--sbatch=--export=ALL,WANDB_API_KEY,B=1", "--env HTTPS_PROXY",
                           "WANDB_API_KEY is not copied"})
    CHECK(says(all, part));
  options = test::options_of({{"args.json", R"({"output_dir": "https://me:xyz@h/x"})"}});
  CHECK(test::refusal(options).find("xyz") == std::string::npos);
}

TEST_CASE("the start line of an import is one line of a shell", "[import]") {
  Imported imported;
  imported.launch = {"--env", "A=it's\nb", "--sbatch=--comment=a b"};
  CHECK(importing::launch_line(imported, "r.yaml") ==
        "dstrain launch r.yaml --env $'A=it\\'s\\x0ab' '--sbatch=--comment=a b'");
}

}  // namespace dstrain
