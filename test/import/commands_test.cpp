#include <algorithm>

#include "engine/import/import.h"
#include "engine/import/shell_words.h"
#include "engine/recipe/load.h"
#include "test/import/sources.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain {
namespace {

using importing::Imported;
using importing::ImportOptions;
using Texts = std::map<std::string, std::string>;
using Words = std::vector<std::string>;

constexpr const char* kHosts = "n1 slots=4\nn2\tslots=4\n# spare\nn3 slots=2\n";
constexpr const char* kTrainer = " --per_device_train_batch_size 2";

ImportOptions command_of(const std::string& line, Texts files = {}) {
  files.emplace("hosts", kHosts);
  ImportOptions options = test::options_of(std::move(files));
  options.command = line;
  return options;
}
Imported of_command(const std::string& line, Texts files = {}) {
  return importing::import_settings(command_of(line, std::move(files)));
}
std::string refused_command(const std::string& line, Texts files = {}) {
  return test::refusal(command_of(line, std::move(files)));
}
bool said_in(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
/// Options of the launch of `deepspeed WORDS` with the hosts above.
Words hosts_of_command(const std::string& words) {
  return of_command("deepspeed --hostfile hosts " + words + " t.py" + kTrainer).launch;
}

}  // namespace

TEST_CASE("hosts and slots are those that the launcher of DeepSpeed takes", "[import]") {
  CHECK(hosts_of_command("") == Words{"--hostfile", "hosts", "--ranks", "10"});
  CHECK(hosts_of_command("--num_nodes 2") == Words{"--hostfile", "hosts", "--ranks", "8"});
  CHECK(hosts_of_command("--num_nodes 5") == Words{"--hostfile", "hosts", "--ranks", "10"});
  CHECK(hosts_of_command("--num_gpus 2") == Words{"--hosts", "n1:2,n2:2,n3:2", "--ranks", "6"});
  CHECK(hosts_of_command("--num_gpus 4") == Words{"--hosts", "n1:4,n2:4,n3:4", "--ranks", "12"});
  CHECK(hosts_of_command("--num_nodes 2 --num_gpus 4") ==
        Words{"--hostfile", "hosts", "--ranks", "8"});
  CHECK(hosts_of_command("--num_nodes 2 --num_gpus 2") ==
        Words{"--hosts", "n1:2,n2:2", "--ranks", "4"});
  CHECK(hosts_of_command("-e n1:0,1@n3") ==
        Words{"--hostfile", "hosts", "--exclude", "n1:0,1@n3", "--ranks", "6"});
  CHECK(hosts_of_command("-in2:1@n2:0") ==
        Words{"--hostfile", "hosts", "--include", "n2:0,1", "--ranks", "2"});
  CHECK(said_in(of_command(std::string("deepspeed --hostfile hosts --num_gpus 2 t.py") + kTrainer +
                           " --gradient_accumulation_steps 3")
                    .recipe,
                "global: 36"));
}

TEST_CASE("what the launcher of DeepSpeed refuses is refused", "[import]") {
  const auto said = [](const std::string& words, const char* hosts = kHosts) {
    return refused_command("deepspeed --hostfile hosts " + words + " t.py", {{"hosts", hosts}});
  };
  CHECK(said_in(said("--num_nodes 2 --include n1"), "beside --include, which DeepSpeed refuses"));
  CHECK(said_in(said("--include n1 --exclude n2"), "beside --include, which DeepSpeed refuses"));
  CHECK(said_in(said("--include n4"), "n4 is no host of the hostfile"));
  CHECK(said_in(said("--include n3:2"), "n3 has no slot 2"));
  CHECK(said_in(said("--exclude n1@n2@n3"), "leaves no host"));
  CHECK(said_in(said("--include n1:x"), "'x' is no slot of n1"));
  CHECK(said_in(said("", "n1 slots=4\nn1 slots=2\n"), "hosts:2:1: error: n1 stands twice"));
  CHECK(said_in(said("", "n1 slots=4\nn2\n"), "hosts:2:1: error: 'n2' is no line of a hostfile"));
  CHECK(said_in(said("", "\n"), "names no host"));
  CHECK(said_in(said("--num-gpus 2"), "did you mean 'num_gpus'?"));
  CHECK(said_in(said("--no_ssh=1"), "it takes no value"));
  CHECK(said_in(said("--master_addr --num_gpus 2"), "--master_addr has no value"));
  CHECK(said_in(refused_command("deepspeed --hostfile away --num_gpus 2 t.py"),
                "num_gpus counts by its hosts"));
  CHECK(refused_command("deepspeed --hostfile away t.py") == "ok");
  CHECK(said_in(said("--launcher slurm"), "Slurm gives each node the same number"));
}

TEST_CASE("without a hostfile there is this machine alone", "[import]") {
  const auto launch = [](const std::string& words) {
    return of_command("deepspeed " + words + " t.py" + kTrainer).launch;
  };
  CHECK(launch("--include localhost:1,2") == Words{"--include", "localhost:1,2", "--ranks", "2"});
  CHECK(launch("--num_gpus 3") == Words{"--ranks", "3"});
  CHECK(of_command(std::string("CUDA_VISIBLE_DEVICES=0,3 deepspeed t.py") + kTrainer).launch ==
        Words{"--include", "localhost:0,3", "--ranks", "2"});
  CHECK(of_command("CUDA_VISIBLE_DEVICES=0,3 deepspeed --num_gpus 4 t.py").launch ==
        Words{"--ranks", "4"});
  CHECK(said_in(refused_command("deepspeed --include n1 t.py"), "n1 is no host"));
  CHECK(said_in(refused_command("deepspeed --num_nodes 2 t.py"), "no hostfile names them"));
}

TEST_CASE("ranks of torchrun", "[import]") {
  const auto launch = [](const std::string& words) {
    return of_command("torchrun " + words + " t.py" + kTrainer).launch;
  };
  CHECK(launch("") == Words{"--ranks", "1"});
  CHECK(launch("--nnodes=2") == Words{"--ranks", "2"});
  CHECK(launch("--nnodes 1:2 --nproc-per-node 4") == Words{"--min-ranks", "4", "--ranks", "8"});
  for (const char* words : {"--nproc_per_node many", "--nproc_per_node 0", "--nnodes two",
                            "--nnodes 4:2", "--nnodes 0"}) {
    CAPTURE(words);
    CHECK(said_in(refused_command(std::string("torchrun ") + words + " t.py"), "is no number of"));
  }
}

TEST_CASE("numbers and flags of a script are read as Python does", "[import]") {
  const auto recipe = [](const std::string& arguments) {
    ImportOptions options =
        command_of(std::string("torchrun t.py") + kTrainer + " --max_steps 9 " + arguments);
    options.settings = {"data.name=squad", "data.path=x", "model.name=bloom-560m"};
    return parse_recipe(importing::import_settings(options).recipe, "made.yaml").recipe;
  };
  const auto rate = [&](const char* text) {
    return recipe(std::string("--learning_rate ") + text).optimizer.lr;
  };
  CHECK(rate("1.e-4") == 1e-4);
  CHECK(rate("+1e-4") == 1e-4);
  CHECK(rate(".5") == 0.5);
  CHECK(rate("0_1.5_0") == 1.5);
  CHECK(recipe("--weight_decay 0. --adam_beta2 .95").optimizer.betas ==
        std::vector<double>{0.9, 0.95});
  CHECK(recipe("--per-device-train-batch-size 2 --seed 007").run.seed == 7);
  for (const char* yes : {"", "1", "yes", "t", "TRUE", "y"}) {
    CAPTURE(yes);
    CHECK(recipe(std::string("--bf16 ") + yes).precision.compute == ComputeType::bf16);
  }
  for (const char* no : {"0", "no", "f", "False", "n"}) {
    CAPTURE(no);
    CHECK(recipe(std::string("--bf16 ") + no).precision.compute == ComputeType::fp32);
  }
  for (const char* bad : {"--learning_rate 1,5", "--learning_rate nan", "--seed 1e2", "--seed 4.0",
                          "--bf16 maybe", "--learning_rate 1__0"}) {
    CAPTURE(bad);
    CHECK(said_in(refused_command(std::string("torchrun t.py") + kTrainer + " " + bad), "is not"));
  }
}

TEST_CASE("a comment ends a command, and a line break does", "[import]") {
  CHECK(importing::shell_words("a b#c \\\n d # --fp16") == Words{"a", "b#c", "d"});
  CHECK(importing::shell_words("# first\na 'b # c'\n# --fp16\n") == Words{"a", "b # c"});
  CHECK(importing::shell_words("a \\\r\n b\r\n") == Words{"a", "b"});
  CHECK(said_in(refused_command("torchrun t.py\necho done"), "another follows"));
  CHECK(said_in(of_command(std::string("torchrun t.py \\\n") + kTrainer + "\n# --fp16").recipe,
                "compute: fp32"));
}

TEST_CASE("a script that shows no Trainer has none of its defaults", "[import]") {
  const Imported imported =
      of_command("torchrun t.py --batch-size 32 --epochs=50 -v --fp16 --learning_rate 1e-3");
  CHECK(imported.unread == Words{"t.py --batch-size 32", "t.py --epochs 50", "t.py -v"});
  for (const char* part : {"batch:", "clip_norm", "schedule", "epochs: 3", "evaluate", "every"}) {
    CAPTURE(part);
    CHECK(!said_in(imported.recipe, part));
  }
  CHECK(said_in(imported.recipe, "compute: fp16"));
  CHECK(said_in(imported.recipe, "lr: 1e-3"));
  const std::string automatic = R"({"train_micro_batch_size_per_gpu": "auto"})";
  CHECK(
      said_in(refused_command("deepspeed t.py --deepspeed ds --batch-size 4", {{"ds", automatic}}),
              "show no TrainingArguments"));
  CHECK(refused_command("deepspeed --num_gpus 2 t.py --deepspeed ds --num_train_epochs 1",
                        {{"ds", automatic}}) == "ok");
}

TEST_CASE("ds_config.json of a script is found by any name and compared as a file", "[import]") {
  const std::string ds = R"({"train_batch_size": 8, "zero_optimization": {"stage": 2}})";
  for (const char* arguments : {"--deepspeed conf/zero", "--deepspeed=conf/zero",
                                "--deepspeed --deepspeed_config conf/zero",
                                "--deepspeed true --deepspeed-config ./conf/zero"}) {
    CAPTURE(arguments);
    CHECK(said_in(of_command(std::string("deepspeed --num_gpus 2 t.py ") + arguments,
                             {{"conf/zero", ds}, {"./conf/zero", ds}})
                      .recipe,
                  "stage: 2"));
  }
  CHECK(said_in(of_command("deepspeed --num_gpus 2 t.py --deepspeed '" + ds + "'").recipe,
                "stage: 2"));
  CHECK(said_in(refused_command("deepspeed t.py --deepspeed missing"), "no file missing"));
  Texts files = {{"ds.json", "\xEF\xBB\xBF" + ds},
                 {"args.json", R"({"deepspeed": "./ds.json", "per_device_train_batch_size": 4})"}};
  ImportOptions options = test::options_of(files);
  options.ranks = 2;
  CHECK(test::refusal(options) == "ok");
  options.command = "deepspeed t.py --deepspeed other.json";
  CHECK(said_in(test::refusal(options), "other.json here, but ds_config.json is ds.json"));
}

TEST_CASE("accelerate beside Trainer: what Transformers refuses is refused", "[import]") {
  const auto said = [](const std::string& section, const std::string& args,
                       const std::string& more = "") {
    return test::refusal(test::options_of(
        {{"accelerate.yaml", "distributed_type: DEEPSPEED\nnum_processes: 2\n" + more +
                                 "deepspeed_config:\n  zero_stage: 2\n" + section},
         {"args.json", args},
         {"ds", R"({"zero_optimization": {"stage": 2}})"}}));
  };
  CHECK(said_in(said("  gradient_accumulation_steps: 4\n", R"({"gradient_accumulation_steps": 2})"),
                "4 here, but 2 by gradient_accumulation_steps of Trainer"));
  CHECK(said_in(said("  gradient_accumulation_steps: 4\n", "{}"), "4 here, but 1"));
  CHECK(said_in(said("  gradient_clipping: 0.5\n", R"({"max_grad_norm": 0.3})"),
                "0.5 here, but 0.3 by max_grad_norm"));
  CHECK(said_in(said("", "{}", "mixed_precision: bf16\n"), "bf16 here, but fp32"));
  CHECK(said("", R"({"bf16": true})", "mixed_precision: fp16\n") == "ok");
  CHECK(said_in(said("  deepspeed_config_file: ds\n", "{}"), "which accelerate refuses"));
  const auto clip = [](const std::string& section) {
    return importing::import_settings(
               test::options_of({{"accelerate.yaml",
                                  "distributed_type: DEEPSPEED\nnum_processes: 2\n"
                                  "deepspeed_config:\n  zero_stage: 2\n" +
                                      section},
                                 {"args.json", R"({"max_grad_norm": 0.3})"}}))
        .recipe;
  };
  CHECK(said_in(clip(""), "clip_norm: 0.3"));
  CHECK(said_in(clip("  gradient_clipping: auto\n"), "clip_norm: 0.3"));
}

TEST_CASE("sections of accelerate count only in their mode", "[import]") {
  const auto recipe = [](const std::string& type, const std::string& command = "") {
    ImportOptions options = test::options_of(
        {{"accelerate.yaml", "distributed_type: " + type +
                                 "\nnum_processes: 2\nfp8_config: {}\nmegatron_lm_config: {}\n"
                                 "parallelism_config: {}\ntpu_name: null\ncommand_file: null\n"
                                 "deepspeed_config:\n  zero_stage: 3\n  gradient_clipping: 0.5\n"
                                 "fsdp_config:\n  fsdp_sharding_strategy: SHARD_GRAD_OP\n"},
         {"args.json", R"({"max_grad_norm": 0.5})"}});
    options.command = command;
    return importing::import_settings(options).recipe;
  };
  CHECK(said_in(recipe("DEEPSPEED"), "stage: 3"));
  CHECK(said_in(recipe("FSDP"), "stage: 2"));
  CHECK(!said_in(recipe("MULTI_GPU"), "stage"));
  CHECK(!said_in(recipe("DEEPSPEED", "accelerate launch --multi_gpu t.py"), "stage"));
  const auto said = [](const char* yaml) {
    return test::refusal(test::options_of({{"accelerate.yaml", yaml}}));
  };
  CHECK(said_in(said("num_processes: 2\n"), "distributed_type: missing"));
  CHECK(said_in(said("distributed_type: NO\nnum_processes: 2\n"), "accelerate starts one process"));
  CHECK(said_in(said("distributed_type: FSDP\nparallelism_config: {tp_size: 2}\n"),
                "only {} is taken"));
}

TEST_CASE("tf32 has no effect beside 16 bits", "[import]") {
  const auto said = [](const char* args) {
    ImportOptions options = test::options_of({{"args.json", args}});
    options.ranks = 1;
    return test::refusal(options);
  };
  CHECK(said(R"({"tf32": true, "bf16": true})") == "ok");
  CHECK(said(R"({"tf32": null})") == "ok");
  CHECK(said_in(said(R"({"tf32": true})"), "--accept tf32"));
}

TEST_CASE("an override of run.steps may end a run before its schedule ends", "[import]") {
  ImportOptions options = test::options_of(
      {{"ds.json", R"({"train_batch_size": 4, "optimizer": {"type": "AdamW"}, "scheduler": {"type":
"WarmupDecayLR", "params": {"total_num_steps": 500, "warmup_num_steps": 10}}})"}});
  options.ranks = 1;
  options.settings = {"run.steps=100"};
  CHECK(said_in(importing::import_settings(options).recipe, "decay_steps: 500"));
}

}  // namespace dstrain
