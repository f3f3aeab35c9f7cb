"""Lists the keys of ds_config.json that a DeepSpeed package reads and that its page documents, one path a line.

python3 test/import/list_deepspeed_keys.py PACKAGE_FOLDER CONFIG_JSON_MD > test/import/deepspeed_keys.txt
PACKAGE_FOLDER holds deepspeed/; CONFIG_JSON_MD is docs/_pages/config-json.md of DeepSpeed's repository.
"""
import ast
import pathlib
import re
import sys

package = pathlib.Path(sys.argv[1]) / "deepspeed"
page = pathlib.Path(sys.argv[2]).read_text()

# Classes whose fields are the keys of a section.
SECTIONS = {
    "runtime/zero/config.py": {"DeepSpeedZeroConfig": "zero_optimization"},
    "runtime/zero/offload_config.py": {"DeepSpeedZeroOffloadParamConfig": "zero_optimization.offload_param",
                                       "DeepSpeedZeroOffloadOptimizerConfig": "zero_optimization.offload_optimizer"},
    "runtime/zero/leaf_module_config.py": {"DeepSpeedZeroLeafModuleConfig": "zero_optimization.leaf_module"},
    "runtime/zenflow/zenflow_config.py": {"ZenFlowConfig": "zero_optimization.zenflow"},
    "runtime/precision_config.py": {"DeepSpeedFP16Config": "fp16", "DeepSpeedBF16Config": "bf16"},
    "runtime/tensor_parallel/config.py": {"TPTrainingConfig": "tensor_parallel", "TPConfig": "tensor_parallel.tp"},
    "runtime/config.py": {"HybridEngineConfig": "hybrid_engine"},
    "monitor/config.py": {"TensorBoardConfig": "tensorboard", "WandbConfig": "wandb", "CSVConfig": "csv_monitor",
                          "CometConfig": "comet"},
    "comm/config.py": {"CommsLoggerConfig": "comms_logger"},
    "compile/config.py": {"CompileConfig": "compile"},
    "utils/config.py": {"DeepSpeedThroughputTimerConfig": "timers.throughput"},
}
# Constants whose texts are keys: of a file, those with these prefixes, under a section.
CONSTANTS = [
    ("runtime/activation_checkpointing/config.py", r"ACT_CHKPT_(?!DEFAULT|FORMAT)\w+(?<!_DEFAULT)$", "activation_checkpointing"),
    ("profiling/constants.py", r"FLOPS_PROFILER_(?!FORMAT)\w+(?<!_DEFAULT)$", "flops_profiler"),
    ("runtime/swap_tensor/constants.py", r"AIO_(?!FORMAT)\w+(?<!_DEFAULT)$", "aio"),
    ("runtime/lr_schedules.py", r"(LR_RANGE_TEST_|CYCLE_|DECAY_|WARMUP_M|WARMUP_N|WARMUP_TYPE$|COS_|TOTAL_)\w*$", "scheduler.params"),
    ("runtime/model_checkpointing/constants.py", r"CHECKPOINT_(TAG_VALIDATION|SERIALIZATION|WRITER)$", "checkpoint"),
]
keys = set()


def texts(path):
    """Constants of a module that are texts."""
    found = {}
    for node in ast.walk(ast.parse((package / path).read_text())):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found[target.id] = node.value.value
    return found


for path, classes in SECTIONS.items():
    for node in ast.walk(ast.parse((package / path).read_text())):
        if not isinstance(node, ast.ClassDef) or node.name not in classes:
            continue
        for field in node.body:
            if not isinstance(field, ast.AnnAssign):
                continue
            names = [field.target.id]
            if isinstance(field.value, ast.Call):
                names += [word.value.value for word in field.value.keywords if word.arg == "alias"]
            keys |= {f"{classes[node.name]}.{name}" for name in names}
for path, pattern, section in CONSTANTS:
    keys |= {f"{section}.{text}" for name, text in texts(path).items() if re.match(pattern, name)}

# What runtime/config.py asks its dictionary for.
known = texts("runtime/constants.py") | texts("elasticity/constants.py") if (package / "elasticity/constants.py").exists() \
    else texts("runtime/constants.py")
config = (package / "runtime/config.py").read_text()
for name in re.findall(r"get_scalar_param\(\s*param_dict,\s*(\w+)", config) + re.findall(r"param_dict\.get\((\w+)", config):
    if name in known:
        keys.add(known[name])
keys |= set(re.findall(r"param_dict(?:\.get\(|\[)['\"](\w+)['\"]", config))
for name in re.findall(r"torch_autocast|TORCH_AUTOCAST\w+", config):
    if name in known and not name.endswith("DEFAULT") and name != "TORCH_AUTOCAST":
        keys.add("torch_autocast." + known[name])
for name in ("GRAD_ACCUM_DTYPE", "PARAM_DTYPE", "BUFFER_DTYPE", "KEEP_IN_FP32_MODULES"):
    keys.add("data_types." + known[name])
for removed in re.findall(r'_REMOVED_(TOP_LEVEL|ZERO)_CONFIG_KEYS = \{(.*?)\n\}', config, re.S):
    keys |= {("zero_optimization." if removed[0] == "ZERO" else "") + name
             for name in re.findall(r'^    "(\w+)":', removed[1], re.M)}
moe = (package / "module_inject/auto_ep_config.py").read_text()
keys |= {f"expert_parallel.{name}" for name in re.findall(r'param_dict\.get\("(\w+)"', moe)}

# Keys of the page's examples, by their braces; names of its headings that no example holds.
for block in re.findall(r"```json\n(.*?)```", page, re.S):
    path, last = [], None
    for token in re.findall(r'"([^"\n]*)"\s*[:=]|([{}])', block):
        if token[0]:
            last = token[0]
            if re.fullmatch(r"\w+", last):
                keys.add(".".join([name for name in path if name] + [last]))
        elif token[1] == "{":
            path.append(last or "")
            last = None
        elif path:
            path.pop()
            last = None
# The page shows the offload sections by themselves.
keys = {f"zero_optimization.{key}" if key.startswith(("offload_param.", "offload_optimizer.")) else key
        for key in keys if key not in ("offload_param", "offload_optimizer")}
# Names of the page's headings that no example holds, and the section that they are described in.
HEADINGS = {"communication_data_type": "", "grad_hooks": "zero_optimization", "load_balance_coeff": "expert_parallel",
            "model_types": "tensor_parallel.partition_config", "partition_dim": "tensor_parallel.partition_config",
            "shape": "tensor_parallel.partition_config", "max_step": "curriculum_learning.schedule_config",
            "difficulty": "curriculum_learning.schedule_config"}
for name in re.findall(r"(?:\*\*\*|<i>\*\*)(?:&emsp;)*([a-z][\w\\]*)(?:\*\*\*|\*\*</i>)", page):
    name = name.replace("\\", "")
    if not any(key.split(".")[-1] == name for key in keys):
        keys.add(f"{HEADINGS[name]}.{name}".lstrip("."))

print("# Keys of ds_config.json that DeepSpeed reads or documents; made by list_deepspeed_keys.py.")
print("\n".join(sorted(keys)))
