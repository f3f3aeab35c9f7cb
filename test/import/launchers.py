"""`recipe import-deepspeed` beside the programs whose command lines and files it reads: 500 command lines of deepspeed (with hostfiles),
torchrun and accelerate launch with arguments of TrainingArguments, and 200 files of accelerate beside Trainer, out of a fixed random series.
What those programs make of them (their own parsers, the launcher of DeepSpeed, HfArgumentParser, DeepSpeedPlugin, HfTrainerDeepSpeedConfig) is what
the recipe and the launch say, or the import refuses. What they refuse is refused.

launchers.py IMPORT_PROBE"""
import contextlib
import io
import json
import logging
import os
import pathlib
import random
import shlex
import subprocess
import sys
import tempfile
import types

CACHE = pathlib.Path(os.environ.get("DSTRAIN_CACHE") or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "dstrain")
PYTHON = CACHE / "import-venv/bin/python3"  # sees DeepSpeed, and the packages of the other environment
if not sys.prefix.endswith("import-venv"):
    if not PYTHON.exists():
        print("skipped: no DeepSpeed (scripts/setup --tests)")
        sys.exit(77)
    os.execv(PYTHON, [str(PYTHON), *sys.argv])

for name in [name for name in os.environ if name.startswith(("ACCELERATE_", "FSDP_", "CUDA_VISIBLE")) or name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]:
    del os.environ[name]
os.environ |= {"DS_ACCELERATOR": "cpu", "HF_HOME": tempfile.mkdtemp(), "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}

import yaml
from accelerate.commands import launch as accelerate_launch
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env, prepare_simple_launcher_cmd_env
from deepspeed.launcher import runner
from torch.distributed import run as torchrun
from transformers import HfArgumentParser, TrainingArguments, training_args
from transformers.integrations.deepspeed import propagate_args_to_deepspeed

logging.disable(logging.CRITICAL)
GPUS = 64  # of this machine, as both sides are told
ENVIRONMENT = dict(os.environ)
training_args.is_torch_bf16_gpu_available = training_args.is_torch_tf32_available = lambda: True
training_args.enable_tf32 = lambda on: None
accelerate_launch.is_bf16_available = lambda *_: True


class Arguments(TrainingArguments):
    """TrainingArguments of rank 0 of `ranks`."""
    ranks = 1
    world_size = property(lambda self: self.ranks)


PARSER = HfArgumentParser(Arguments)
ACCELERATE = accelerate_launch.launch_command_parser()


class Refused(Exception):
    """What one of the programs refuses, in its words."""


class Started(Exception):
    """What DeepSpeed would start: its list of hosts."""


def quietly(call, *arguments):
    """Their parsers end the process."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
            return call(*arguments)
    except SystemExit:
        raise Refused(printed.getvalue().strip().splitlines()[-1]) from None


def caught(world_info):
    raise Started(world_info)


runner.encode_world_info = caught
runner.subprocess = types.SimpleNamespace(check_call=lambda *_, **__: 0, check_output=lambda *_, **__: b"10.0.0.1", DEVNULL=None,
                                          CalledProcessError=subprocess.CalledProcessError)
runner.get_accelerator = lambda: types.SimpleNamespace(visible_devices_envs=lambda: ["CUDA_VISIBLE_DEVICES"], device_count=lambda: GPUS)


def deepspeed_hosts(words, environment):
    """[[host, GPUs]] as `deepspeed WORDS` starts them."""
    os.environ.clear()
    os.environ.update(ENVIRONMENT | environment)
    try:
        quietly(runner.main, words)
    except Started as hosts:
        return [[host, list(slots)] for host, slots in hosts.args[0].items()]
    except (ValueError, RuntimeError, IndexError, AssertionError, NotImplementedError) as error:
        raise Refused(str(error)) from None
    finally:
        os.environ.clear()
        os.environ.update(ENVIRONMENT)
    raise AssertionError("nothing was started")


def torchrun_ranks(words):
    """(min nodes, max nodes, ranks of each); ranks None: as many as the machine has."""
    arguments = quietly(torchrun.parse_args, words)
    try:
        min_nodes, max_nodes = torchrun.parse_min_max_nnodes(arguments.nnodes)
        if min_nodes < 1 or max_nodes < min_nodes:
            raise Refused("nnodes")
        each = arguments.nproc_per_node
        if each in ("auto", "gpu", "cpu"):
            return min_nodes, max_nodes, None
        each = torchrun.determine_local_world_size(each)
        if each < 1:
            raise Refused("nproc_per_node")
        return min_nodes, max_nodes, each
    except (ValueError, RuntimeError) as error:
        raise Refused(str(error)) from None


def accelerate_start(words):
    """What `accelerate launch WORDS` starts: ranks or [[host, GPUs]], and the environment of the ranks."""
    args = quietly(ACCELERATE.parse_args, words)
    try:
        args, defaults, from_file = accelerate_launch._validate_launch_command(args)
        if args.use_deepspeed and not args.cpu:
            fields = list(defaults.deepspeed_config) if defaults else []
            args.deepspeed_fields_from_accelerate_config = ",".join(fields + ["mixed_precision"] * from_file)
            command, environment = prepare_deepspeed_cmd_env(args)
            if command is not None:
                return deepspeed_hosts(command[1:], {}), environment
        elif (args.use_fsdp or args.multi_gpu) and not args.cpu:
            environment = prepare_multi_gpu_env(args)
        else:
            return 1, prepare_simple_launcher_cmd_env(args)[1]
        return int(args.nproc_per_node) * int(getattr(args, "nnodes", 1)), environment
    except (ValueError, TypeError, AttributeError, AssertionError) as error:
        raise Refused(str(error)) from None


def trainer_of(words, ranks, environment=None):
    """TrainingArguments of a script, and ds_config.json as its ranks have it (None: no DeepSpeed)."""
    Arguments.ranks = ranks or 1
    os.environ.update(environment or {})
    try:
        args, = quietly(PARSER.parse_args_into_dataclasses, [*words, "--use_cpu"])
        config = getattr(args, "hf_deepspeed_config", None)
        if config is None and args.deepspeed_plugin is not None:
            propagate_args_to_deepspeed(types.SimpleNamespace(state=types.SimpleNamespace(deepspeed_plugin=args.deepspeed_plugin)), args)
            config = args.deepspeed_plugin.hf_ds_config
        if config is not None:
            args.deepspeed_plugin.set_mixed_precision(args.mixed_precision)  # as Accelerator does
            config.trainer_config_finalize(args, None, args.max_steps)
        return args, config and config.config
    except (ValueError, TypeError, OSError) as error:
        raise Refused(str(error)) from None
    finally:
        os.environ.clear()
        os.environ.update(ENVIRONMENT)


def wanted_recipe(args, config, ranks):
    """Values of a recipe by path."""
    ds = config or {}
    optimizer = ds.get("optimizer", {}).get("params")
    micro = ds.get("train_micro_batch_size_per_gpu", args.per_device_train_batch_size)
    steps = ds.get("gradient_accumulation_steps", args.gradient_accumulation_steps)
    compute = args.mixed_precision
    if config is not None:
        compute = next((name for name in ("bf16", "fp16") if ds.get(name, {}).get("enabled")), "no")
    values = {"batch.micro": micro, "optimizer.lr": args.learning_rate, "optimizer.weight_decay": args.weight_decay,
              "optimizer.betas": [args.adam_beta1, args.adam_beta2], "optimizer.eps": args.adam_epsilon,
              "optimizer.clip_norm": args.max_grad_norm if config is None else ds.get("gradient_clipping", 1.0),
              "precision.compute": {"no": "fp32"}.get(compute, compute), "run.seed": args.seed}
    if optimizer:
        values |= {"optimizer.lr": optimizer["lr"], "optimizer.weight_decay": optimizer.get("weight_decay", 0)}
        values["optimizer.betas"], values["optimizer.eps"] = optimizer.get("betas", [0.9, 0.999]), optimizer.get("eps", 1e-8)
    if ranks:
        values["batch.global"] = micro * steps * ranks
    if args.max_steps > 0:
        values |= {"run.steps": args.max_steps, "optimizer.warmup_steps": args.get_warmup_steps(args.max_steps)}
    else:
        values["run.epochs"] = args.num_train_epochs
    values["optimizer.schedule"] = args.lr_scheduler_type.value.split("_")[0]
    if values["optimizer.schedule"] == "constant" and args.lr_scheduler_type.value == "constant":
        values.pop("optimizer.warmup_steps", None)
    if config is not None:
        values["parallel.zero.stage"] = ds["zero_optimization"]["stage"]
    return values


ABSENT = {"run.seed": 42, "optimizer.warmup_steps": 0, "parallel.zero.stage": 0}  # what a recipe does not say


def differences(recipe, wanted):
    for path, value in wanted.items():
        have = recipe
        for name in path.split("."):
            have = have.get(name) if isinstance(have, dict) else None
        if have is None:
            have = ABSENT.get(path)
        same = have == value
        if not same and have is not None and not isinstance(value, str):
            pair = isinstance(value, list)
            same = [float(one) for one in (have if pair else [have])] == [float(one) for one in (value if pair else [value])]
        if not same:
            yield f"{path}: {have}, there {value}"


# Generated cases.

def spelled(choose, value):
    """A number as people and Python write it; now and then what neither takes."""
    if choose.random() < 0.01:
        return choose.choice(["1,5", "e5", "0x10", "1__0", "--", "one", ""])
    if isinstance(value, int):
        return choose.choice([str(value)] * 12 + [f"+{value}"] * 3 + [f"0{value}", f"{value}_0", f"{value}.0"])
    text = repr(value)
    forms = [text, text, f"+{text}", f"{value:e}", f"{value:g}"]
    if text.startswith("0."):
        forms.append(text[1:])
    if value == int(value):
        forms += [f"{int(value)}", f"{int(value)}.", f"{int(value)}.e0"]
    if value and 1 > value >= 1e-6:
        forms += [f"{value * 1e4:g}.e-4" if "." not in f"{value * 1e4:g}" and "e" not in f"{value * 1e4:g}" else text]
    return choose.choice(forms)


TRUE, FALSE = ["True", "true", "1", "yes", "y", "t", "YES"], ["False", "false", "0", "no", "n", "f"]


def script_words(choose, with_file=None):
    """Arguments of a script of Trainer."""
    words = []

    def add(name, *values):
        name = name.replace("_", "-") if choose.random() < 0.3 else name
        if len(values) == 1 and choose.random() < 0.25:
            words.append(f"--{name}={values[0]}")
        else:
            words.extend([f"--{name}", *values])

    add("per_device_train_batch_size", spelled(choose, choose.choice([1, 2, 4, 16])))
    for name, values in (("gradient_accumulation_steps", [1, 2, 4]), ("learning_rate", [1e-4, 5e-5, 0.5, 1e-3, 2.0]),
                         ("weight_decay", [0.0, 0.1, 0.01, 1.0]), ("adam_beta1", [0.9, 0.8]), ("adam_beta2", [0.999, 0.95]),
                         ("adam_epsilon", [1e-8, 1e-6]), ("max_grad_norm", [0.3, 0.5, 1.0]), ("seed", [7, 42]),
                         ("max_steps", [100, 500]), ("warmup_steps", [0.0, 10.0, 0.1]), ("num_train_epochs", [1.0, 2.0, 3.0]),
                         ("logging_steps", [10.0])):
        if choose.random() < 0.4:
            add(name, spelled(choose, choose.choice(values)))
    if choose.random() < 0.4:
        add("lr_scheduler_type", choose.choice(["linear", "cosine", "constant", "constant_with_warmup"]))
    for name in ("bf16", "fp16", "tf32", "gradient_checkpointing", "dataloader_pin_memory"):
        if choose.random() < {"fp16": 0.1, "tf32": 0.06}.get(name, 0.3):
            value = choose.choice([[], [choose.choice(TRUE)], [choose.choice(FALSE)], ["maybe"] if choose.random() < 0.1 else []])
            add(name, *(value or ["true"] if name == "tf32" else value))  # tf32 is no switch
    if choose.random() < 0.2:
        words += ["--report_to", "none"]
    if with_file:
        add("deepspeed", with_file)
    return words


def write_hostfile(choose, path):
    hosts = [f"n{i}" for i in range(choose.choice([1, 2, 3, 3, 4]))]
    lines = ["# hosts of the cluster", ""] if choose.random() < 0.3 else []
    lines += [f"{host}{choose.choice([' ', '  ', chr(9)])}slots={choose.choice([2, 4, 4, 8])}" for host in hosts]
    if choose.random() < 0.06:
        lines.append(choose.choice(["n0 slots=2", "n9", "n9 slots=x", "n9 slot=4", " n9 slots=4 ", "n9 slots=0"]))
    path.write_text("\n".join(lines) + "\n" * choose.randrange(2))
    return hosts


def filter_of(choose, hosts):
    def one():
        host = choose.choice(hosts * 2 + (["n7"] if choose.random() < 0.15 else []))
        slots = choose.sample(range(5 if choose.random() < 0.3 else 2), choose.choice([1, 1, 2]))
        return host if choose.random() < 0.5 else f"{host}:{','.join(map(str, slots))}"
    return "@".join(one() for _ in range(choose.choice([1, 1, 2, 3])))


def deepspeed_case(choose, folder):
    words, environment, hosts = [], {}, ["localhost"]
    if choose.random() < 0.75:
        hosts = write_hostfile(choose, folder / "hosts")
        words += choose.choice([["--hostfile", f"{folder}/hosts"], [f"--hostfile={folder}/hosts"], ["-H", f"{folder}/hosts"]])
    kind = choose.random()
    if kind < 0.3:
        words += [choose.choice(["--include", "-i"]), filter_of(choose, hosts)]
    elif kind < 0.45:
        words += [choose.choice(["--exclude", "-e"]), filter_of(choose, hosts)]
    if kind >= 0.45 or choose.random() < 0.1:
        if choose.random() < 0.6:
            words += ["--num_nodes", str(choose.choice([-1, 0, 1, 2, 3, 5]))]
        if choose.random() < 0.6:
            words += [choose.choice(["--num_gpus", "--num_accelerators"]), str(choose.choice([-1, 0, 1, 2, 4, 8]))]
    if choose.random() < 0.15:
        environment["CUDA_VISIBLE_DEVICES"] = choose.choice(["0,1", "2", "0,1,2,3"])
    if choose.random() < 0.3:
        words += choose.choice([["--master_port", "29501"], ["--launcher", "OpenMPI"], ["--no_ssh_check"], ["-q"], ["--log_level=warning"],
                                ["--master_addr", "10.0.0.1"]] * 3 + [["--num-gpus", "2"], ["--num_gpus=two"]])
    return ["deepspeed"], words, environment


def torchrun_case(choose, _):
    def add(name, values):
        name = name.replace("_", "-") if choose.random() < 0.4 else name
        value = str(choose.choice(values))
        words.extend([f"--{name}={value}"] if choose.random() < 0.4 else [f"--{name}", value])
    words = []
    if choose.random() < 0.7:
        add("nproc_per_node", [1, 2, 4, 8] * 4 + ["auto", "gpu", "many", 0])
    if choose.random() < 0.6:
        add("nnodes", [1, 2, 3, "1:2", "2:4", "2:2"] * 3 + ["4:2", "two", "0"])
    if choose.random() < 0.4:
        add("max_restarts", [0, 3])
    if choose.random() < 0.4:
        words += choose.choice([["--standalone"], ["--rdzv-backend", "c10d"], ["--master_port=29501"], ["--tee", "3"], ["-t", "3"],
                                ["--rdzv_endpoint=h:1"]] * 3 + [["--nproc", "2"], ["--max_restarts"], ["--standalone=1"]])
    return choose.choice([["torchrun"], ["python", "-m", "torch.distributed.run"]]), words, {}


def accelerate_case(choose, _):
    words = choose.choice([["--multi_gpu"]] * 5 + [["--use_deepspeed"]] * 5 + [["--use_fsdp"]] * 3 + [["--use_fsdp", "--multi_gpu"]])

    def add(share, name, values):
        if choose.random() >= share:
            return
        written = name.replace("_", "-") if choose.random() < 0.4 else name
        value = str(choose.choice(values))
        words.extend([f"--{written}={value}"] if choose.random() < 0.4 else [f"--{written}", value])
    add(2, "num_processes", [2, 4, 8, 8])
    if choose.random() < 0.3:
        words += ["--num_machines", "2", "--machine_rank", "0", "--main_process_ip", "10.0.0.1", "--main_process_port", "29777"]
        if "--use_deepspeed" in words:
            words += ["--deepspeed_multinode_launcher", "standard"]
    add(0.4, "mixed_precision", ["no", "no", "bf16", "bf16", "fp16", "half"])
    add(0.4, "zero_stage", [0, 1, 2, 3])
    add(0.3, "gradient_accumulation_steps", [1, 2, 4])
    add(0.3, "gradient_clipping", ["1.0", ".5", "0.3", "0"])
    add(0.2, "fsdp_sharding_strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
    add(0.1, "max_restarts", [3])
    return choose.choice([["accelerate", "launch"], ["python", "-m", "accelerate.commands.launch"]]), words, {}


def accelerate_file(choose, folder):
    """A file as `accelerate config` of 2022 to 2026 writes it, and words beside it."""
    kind = choose.choice(["NO", "MULTI_GPU", "DEEPSPEED", "DEEPSPEED", "DEEPSPEED", "FSDP"])
    machines = 2 if kind != "NO" and choose.random() < 0.25 else 1
    config = {"compute_environment": "LOCAL_MACHINE", "distributed_type": kind, "num_machines": machines, "machine_rank": 0,
              "num_processes": 1 if kind == "NO" else choose.choice([2, 4, 8]), "use_cpu": False, "main_training_function": "main"}
    if machines > 1:
        config |= {"main_process_ip": "10.0.0.1", "main_process_port": 29777, "rdzv_backend": "static", "same_network": True}
    if choose.random() < 0.6:
        config["mixed_precision"] = choose.choice(["no", "no", "bf16", "fp16"])
    if choose.random() < 0.5:  # as earlier versions wrote them
        config |= {"megatron_lm_config": {}, "command_file": None, "commands": None, "tpu_name": None, "tpu_zone": None, "dynamo_backend": "NO"}
    if choose.random() < 0.4:
        config |= {"fp8_config": {}, "parallelism_config": {}, "fsdp_config": {}, "deepspeed_config": {}, "tpu_env": [], "debug": False, "downcast_bf16": "no"}
    if kind == "DEEPSPEED" or choose.random() < 0.1:
        section = {"zero_stage": choose.choice([0, 1, 2, 3]), "zero3_init_flag": choose.choice([True, False]),
                   "offload_optimizer_device": choose.choice(["none", "none", "cpu"]), "offload_param_device": "none"}
        if choose.random() < 0.7:
            section["gradient_accumulation_steps"] = choose.choice([1, 2, 4])
        if choose.random() < 0.5:
            section["gradient_clipping"] = choose.choice([1.0, 0.5, 0.3])
        if choose.random() < 0.25:
            section = {"deepspeed_config_file": write_config(choose, folder), "zero3_init_flag": True} | (
                {"zero_stage": 2} if choose.random() < 0.2 else {})
            if choose.random() < 0.8:
                config.pop("mixed_precision", None)
        if machines > 1:
            section["deepspeed_multinode_launcher"] = choose.choice(["pdsh", "standard"])
            if section["deepspeed_multinode_launcher"] == "pdsh":
                hosts = write_hostfile(choose, folder / "hosts")
                section["deepspeed_hostfile"] = f"{folder}/hosts"
                if choose.random() < 0.3:
                    section[choose.choice(["deepspeed_inclusion_filter", "deepspeed_exclusion_filter"])] = filter_of(choose, hosts)
        config["deepspeed_config"] = section
    if kind == "FSDP" or choose.random() < 0.1:
        config["fsdp_config"] = {"fsdp_sharding_strategy": choose.choice(["FULL_SHARD", "SHARD_GRAD_OP"]), "fsdp_offload_params": False,
                                 "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
    (folder / "accelerate.yaml").write_text(yaml.safe_dump(config))
    words = []
    if choose.random() < 0.15:
        words += ["--num_processes", str(choose.choice([2, 4]))]
    if choose.random() < 0.1:
        words += ["--mixed_precision", choose.choice(["bf16", "fp16", "no"])]
    if choose.random() < 0.1:
        words.append("--multi_gpu")
    return words


def write_config(choose, folder):
    """ds_config.json, much of it "auto"."""
    def value(*others):
        return "auto" if choose.random() < 0.75 else choose.choice(others)
    config = {"train_micro_batch_size_per_gpu": value(1, 4), "gradient_accumulation_steps": value(1, 2), "gradient_clipping": value(1.0, 0.5),
              "zero_optimization": {"stage": choose.choice([0, 1, 2, 3])}, "bf16": {"enabled": value(True, False)}}
    if choose.random() < 0.5:
        config["optimizer"] = {"type": "AdamW", "params": {"lr": value(1e-4, 5e-5), "betas": "auto", "eps": "auto", "weight_decay": value(0.0, 0.1)}}
    if choose.random() < 0.3:
        del config["gradient_clipping"]
    (folder / "ds.json").write_text(json.dumps(config))
    return f"{folder}/ds.json"


def reference(program, words, script, environment):
    """(placement or None, ranks or None, recipe values) as those programs have it; Refused."""
    if program[-1] == "deepspeed":
        hosts = deepspeed_hosts([*words, *script], environment)
        return hosts, sum(len(slots) for _, slots in hosts), {}
    if program[-1].startswith("torch"):
        min_nodes, max_nodes, each = torchrun_ranks([*words, *script])
        return None, max_nodes * each if each else None, {}
    started, ranks_environment = accelerate_start([*words, *script])
    if isinstance(started, int):
        return None, started, ranks_environment
    return started, sum(len(slots) for _, slots in started), ranks_environment


def fsdp_stage(environment):
    if environment.get("ACCELERATE_USE_FSDP") != "true":
        return {}
    return {"parallel.zero.stage": {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0}[environment["FSDP_SHARDING_STRATEGY"]]}


def same_placement(ours, theirs):
    mine = [["localhost" if host == "me" else host, devices or list(range(count))] for host, count, devices in ours]
    return mine == theirs


def main():
    choose, cases = random.Random(45), []
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(700):
            folder = pathlib.Path(scratch) / str(number)
            folder.mkdir()
            kind = (deepspeed_case, torchrun_case, accelerate_case)[0 if number < 220 else 1 if number < 350 else 2]
            if number < 500:
                program, words, environment = kind(choose, folder)
            else:
                program, environment = ["accelerate", "launch"], {}
                words = [*accelerate_file(choose, folder), "--config_file", f"{folder}/accelerate.yaml"]
            config = write_config(choose, folder) if kind is not accelerate_case and choose.random() < 0.25 else None
            script = ["train.py", *script_words(choose, config)]
            line = shlex.join([*(f"{name}={value}" for name, value in environment.items()), *program, *words, *script])
            try:
                placement, ranks, more = reference(program, words, script, environment)
                args, ds = trainer_of(script[1:], ranks, more)
                wanted = wanted_recipe(args, ds, ranks) | fsdp_stage(more)
                cases.append((line, placement, ranks, wanted, None))
            except Refused as error:
                cases.append((line, None, None, None, str(error)))
            with open(f"{scratch}/cases", "a") as file:
                settings = ["model.name=qwen2.5-0.5b", "data.name=metamathqa", "data.path=x", "data.tokenizer=x"]
                file.write(json.dumps({"command": line, "gpus": GPUS, "settings": settings}) + "\n")
        result = subprocess.run([sys.argv[1], f"{scratch}/cases"], capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, (result.returncode, result.stderr[-2000:])
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(answers) == len(cases)
    counts = {"equal": 0, "refused by both": 0, "refused here": 0}
    failures, ours_alone = [], {}
    for (line, placement, ranks, wanted, theirs), answer in zip(cases, answers):
        if "error" in answer:
            counts["refused by both" if theirs else "refused here"] += 1
            if not theirs:
                ours_alone.setdefault(answer["error"].splitlines()[0][-90:], line)
            continue
        if theirs:
            failures.append(f"{line}\n    there: {theirs}\n    here: taken, {answer['launch']}")
            continue
        wrong = list(differences(yaml.safe_load(answer["recipe"]), wanted))
        mine = sum(count for _, count, _ in answer["placement"])
        if placement is not None and not same_placement(answer["placement"], placement):
            wrong.append(f"{answer['placement']}, there {placement}")
        if placement is None and ranks and "--ranks" in answer["launch"] and mine != ranks:
            wrong.append(f"{mine} ranks, there {ranks}")
        if wrong:
            failures.append(f"{line}\n    " + "\n    ".join(wrong) + f"\n    {answer['launch']}")
        else:
            counts["equal"] += 1
    print(counts)
    for reason, line in ours_alone.items():
        print(f"refused here alone: {reason}\n    {line}")
    assert not failures, f"{len(failures)} differ:\n" + "\n".join(failures[:12])
    assert counts["equal"] > 300 and counts["refused by both"] > 60 and counts["refused here"] < 70, counts
    print("launchers: ok")


main()
