"""Rules of the tree that no compiler checks: include order of the layers, banned headers, widths of pages, no machine's paths."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAYERS = re.search(r"set\(DSTRAIN_LAYERS (.*?)\)", (ROOT / "scripts/cmake/Layers.cmake").read_text(), re.S)[1].split()
FOLDERS = {name: name.replace("_", "/") if name.startswith("launcher_") else f"engine/{name}" for name in LAYERS} | {
    "recipe": "engine/recipe", "import": "engine/import", "tokenizer": "engine/data/tokenizer", "text": "engine/data/text", "cmd": "cmd"}
# Below the layer `device` nothing needs LibTorch, so that these parts start and compile at once.
TORCH_FREE = LAYERS[:LAYERS.index("device")]
# Parsers of their own events; the two of the launcher read what this process wrote.
JSON_READERS = {"engine/base/json.cpp", "engine/chat/json_reader.cpp", "engine/data/text/json_file.h", "engine/weights/safetensors_header.cpp", "launcher/doctor/doctor_report.cpp",
                "launcher/job/failure.cpp"}
# Files of /proc, /sys and /etc.
SYSTEM_READERS = {"cmd/launch_job.cpp", "engine/base/host_memory.cpp", "engine/base/system_files.cpp", "engine/device/device.cpp", "engine/device/numa.cpp", "engine/program/measured_machine.cpp",
                  "engine/samples/process_sample.cpp"} | {
    f"launcher/{name}.cpp" for name in ("base/process_tree", "doctor/engine_probe", "doctor/inspect", "hang/kernel_state",
                                        "hang/stacks", "job/environment_file", "job/oom")}

problems = []
files = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                       capture_output=True, text=True).stdout.split("\n")
files = [f for f in files if f and (ROOT / f).is_file()]


def layer_of(path):
    """The layer whose folder holds the path; of folders inside each other the inner one."""
    holders = [name for name, folder in FOLDERS.items() if path.startswith(folder + "/")]
    return max(holders, key=lambda name: len(FOLDERS[name]), default=None)


def declared_uses():
    """The layers that each dstrain_layer() of the tree may include: those that it names and what those name."""
    uses = {}
    for name in files:
        if not name.endswith("CMakeLists.txt"):
            continue
        for layer, rest in re.findall(r"^dstrain_layer\((\w+)(.*?)\)", (ROOT / name).read_text(), re.S | re.M):
            named = re.search(r"\bUSES ([\w\s]*?)(?:\bLIBRARIES\b|$)", rest)
            uses[layer] = set(named[1].split()) if named else set()
    for layer in LAYERS:  # bottom to top, so that those below are complete
        for used in list(uses.get(layer, ())):
            uses[layer] |= uses.get(used, set())
    return uses


uses = declared_uses()
for name in files:
    if not name.endswith((".h", ".cpp", ".cu", ".cuh")):
        continue
    layer = layer_of(name)
    if name.startswith(("engine/", "launcher/", "cmd/")) and not layer:
        problems.append(f"{name}: belongs to no layer of scripts/cmake/Layers.cmake")
    text = (ROOT / name).read_text()
    for number, line in enumerate(text.split("\n"), 1):
        include = re.match(r'\s*#include\s+[<"]([^>"]+)[>"]', line)
        if not include:
            continue
        header = include[1]
        where = f"{name}:{number}"
        torch = header.startswith(("ATen/", "torch/", "c10/"))
        if header in ("torch/torch.h", "ATen/ATen.h"):
            problems.append(f"{where}: {header} costs ten seconds; include the operators you use")
        if torch and name.endswith((".cu", ".cuh")):
            problems.append(f"{where}: a .cu includes {header}")
        if header.startswith("torch/headeronly/version") or header == "torch/version.h":
            problems.append(f"{where}: no code asks which LibTorch it is compiled with; what differs stands in scripts/cmake/LibTorch.cmake")
        if torch and layer in TORCH_FREE:
            problems.append(f"{where}: layer {layer} is free of LibTorch and includes {header}")
        used = layer_of(header)
        if layer and used and LAYERS.index(used) > LAYERS.index(layer):
            problems.append(f"{where}: layer {layer} includes {header} of the layer {used} above it")
        elif layer in uses and used and used != layer and used not in uses[layer]:
            problems.append(f"{where}: layer {layer} includes {header}, but its dstrain_layer() does not use {used}")

# One place opens what users name, one reads JSON: what they check would be missing elsewhere.
for name in files:
    if not name.startswith(("cmd/", "engine/", "launcher/", "recipes/")) or not name.endswith((".h", ".cpp")):
        continue
    for number, line in enumerate((ROOT / name).read_text().split("\n"), 1):
        if re.search(r"\b(json|Json)::(parse|sax_parse)\(", line) and name not in JSON_READERS:
            problems.append(f"{name}:{number}: JSON is read by engine/base/json.h")
        if "std::ifstream" in line and name not in SYSTEM_READERS:
            problems.append(f"{name}:{number}: files are opened by engine/base/input_file.h (read_file, MappedFile)")
WRITERS = {"engine/base/output_file.cpp",
           "engine/base/rank_record.cpp", "engine/base/spawn.cpp",  # memory of an agent; /dev/null
           "engine/comm/shared_memory.cpp", "engine/device/host_file.cpp",  # files without a name
           "cmd/setup.cpp", "engine/kernels/linear/gemm_cache.cpp",  # room on a disk and a lock, which hold nothing
           "launcher/base/fd.cpp", "launcher/base/standard_output.cpp", "launcher/doctor/engine_probe.cpp", "launcher/hang/stacks.cpp"}
RANGES = re.compile(r"\bCLI::(Range|PositiveNumber|NonNegativeNumber|Bound)\b")
for name in files:
    if not name.startswith(("cmd/", "engine/", "launcher/", "recipes/")) or not name.endswith((".h", ".cpp", ".cu")):
        continue
    for number, line in enumerate((ROOT / name).read_text().split("\n"), 1):
        code = line.split("//")[0]
        if re.search(r"\bO_(WRONLY|RDWR|CREAT)\b|\bstd::o?fstream\b|\bfopen\(|\bcreat\(|\bmkstemp", code) and name not in WRITERS:
            problems.append(f"{name}:{number}: files are written by engine/base/output_file.h (write_file_atomically, AppendFile)")
        if RANGES.search(code) and name != "cmd/number_option.h":
            problems.append(f"{name}:{number}: ranges of numbers are checked by cmd/number_option.h, which refuses nan")
# All text for people passes printable(): one file writes it, one draws on terminals.
WRITES = re.compile(r"\bfmt::print\b|\bstd::(v?f?print(f|ln)?|cout|cerr|clog|f?put(s|c|char)|fwrite|perror)\b"
                    r"|(?<![\w:.])(printf|fprintf|puts|fputs|perror|putchar)\(|\bwrite\(STD(OUT|ERR)_FILENO|\bstd(out|err)\b")
MAY_WRITE = {"engine/base/output.cpp",
             "engine/train/session/stop_signal.cpp",  # a constant sentence, in a signal handler, where only write() may be called
             "engine/base/pmix_helper.cpp",  # a program of its own, which a pipe of ours reads
             "launcher/base/child_process.cpp"}  # a child before its exec, whose streams are pipes of ours
DRAW = re.compile(r"\\(x1[bB]|033|e)(\[|\])|\\r\\x1b")
MAY_DRAW = {"engine/base/output.cpp", "launcher/base/console.cpp"}
for name in files:
    if not name.endswith((".h", ".cpp", ".cu", ".cuh")) or not layer_of(name):
        continue
    for number, line in enumerate((ROOT / name).read_text().split("\n"), 1):
        code = line.split("//")[0]
        if name not in MAY_WRITE and WRITES.search(re.sub(r'"(\\.|[^"\\])*"', '""', code)):
            problems.append(f"{name}:{number}: writes to standard output or error; use engine/base/output.h")
        if name not in MAY_DRAW and DRAW.search(code):
            problems.append(f"{name}:{number}: drives the terminal; use engine/base/output.h or launcher/base/console.h")

# A bound is a max or a min.
BOUND = re.compile(r"\bk(Most|Least|Fewest)\w*|\b(\w+_)?(most|least|fewest)(_\w+)?\b")
NO_BOUND = re.compile(r"at_least|most_(likely|confused|often|there)")
STRING = re.compile(r'"(\\.|[^"\\])*"')
for name in files:
    if not name.endswith((".h", ".cpp", ".cu", ".cuh")):
        continue
    for number, line in enumerate(re.sub(r'R"(\w*)\(.*?\)\1"', '""', (ROOT / name).read_text(), flags=re.S).split("\n"), 1):
        found = BOUND.search(STRING.sub('""', line).split("//")[0])
        if found and not NO_BOUND.search(found[0]):
            problems.append(f"{name}:{number}: {found[0]}; names of bounds say max and min")

for name in files:
    path = ROOT / name
    if path.stat().st_size > 1 << 20:
        problems.append(f"{name}: {path.stat().st_size} bytes is too large for the tree")
    if name.endswith((".gz", ".png", ".bin", ".jpg")) or "/corpus/" in name:
        continue
    text = path.read_text(errors="replace")
    for pattern in ("/work" + "/", "/root" + "/", "/var/tmp" + "/d"):
        if pattern in text:
            problems.append(f"{name}: holds the path {pattern} of one machine")
    for case in re.findall(r'TEST_CASE\(\s*"([^"]*;[^"]*)"', text):
        problems.append(f"{name}: the test '{case}' has a semicolon in its name, which parts it for ctest")
    if name.endswith((".h", ".cpp", ".cu", ".cuh", ".py")) and text.count("\n") > 600:
        problems.append(f"{name}: {text.count(chr(10))} lines; a file of more than 600 holds two things")

# A comment says its subject first.
COMMENTED = (".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake", "CMakeLists.txt", ".yaml")
for name in files:
    script = name.startswith(("scripts/", "slurm/")) and "." not in pathlib.Path(name).name
    if not name.endswith(COMMENTED) and not script:
        continue
    for number, line in enumerate((ROOT / name).read_text(errors="replace").split("\n"), 1):
        if re.search(r'(//[/<]*|(^|\s)#+|""") ?Of ', line):
            problems.append(f'{name}:{number}: the comment opens with "Of"; say its subject first')

# Pages for people; .editorconfig says the same. What the program writes is as wide as what it lists.
MAY_BE_WIDE = ("recipes/REFERENCE.md", "recipes/DEEPSPEED_KEYS.md", "test/golden/")
for name in files:
    if not name.endswith(".md") or name.startswith(MAY_BE_WIDE):
        continue
    for number, line in enumerate((ROOT / name).read_text().split("\n"), 1):
        if len(line) > 140:
            problems.append(f"{name}:{number}: {len(line)} columns; a line of Markdown, rows of tables too, has at most 140")

# A page names sources that are there: `train/execute/executor.cpp` is a file or the end of the path of one.
SOURCE = re.compile(r"`((?:\.\./)*[\w./-]+\.(?:h|cpp|cu|cuh|tsv))`")
ends = {"/".join(parts[i:]) for parts in (f.split("/") for f in files) for i in range(len(parts))}
for name in files:
    if name.endswith(".md") and not name.startswith((*MAY_BE_WIDE, "CHANGELOG.md")):
        for number, line in enumerate((ROOT / name).read_text().split("\n"), 1):
            problems += [f"{name}:{number}: there is no {source}" for source in SOURCE.findall(line)
                         if source.replace("../", "") not in ends]

# One page lists the variables of the environment: each that something reads or sets, and no other.
PAGE = "recipes/guides/environment.md"
# Those of scripts/make-import-files, which only tests start.
TESTS_OWN = {"DSTRAIN_TRANSFORMERS", "DSTRAIN_MAKES_IMPORT_FILES"}
NAMES = re.compile(r"""["'](DSTRAIN_[A-Z_]+)["'=]|\$(?:env)?\{?(DSTRAIN_[A-Z_]+)""")
variables = {}
for name in files:
    if name.startswith(("cmd/", "engine/", "launcher/", "recipes/", "scripts/", "slurm/")) and not name.endswith((".md", ".txt", ".tsv", ".cmake")):
        for found in NAMES.findall((ROOT / name).read_text(errors="replace")):
            variables.setdefault(found[0] or found[1], name)
listed = set(re.findall(r"`(DSTRAIN_[A-Z_]+)", (ROOT / PAGE).read_text()))
for variable in sorted(set(variables) - TESTS_OWN - listed):
    problems.append(f"{variables[variable]}: {variable} is not in {PAGE}, which lists all variables of the environment")
for variable in sorted(listed - set(variables)):
    problems.append(f"{PAGE}: nothing reads or sets {variable}")

# One page lists what another version of LibTorch may change.
TORCH_PAGE = "engine/TORCH.md"
INNER = re.compile(r"#include <(torch/csrc|ATen/ops/_|ATen/cudnn/|ATen/native/|ATen/cuda/CUDAGraph|ATen/core/LegacyTypeDispatch|ATen/record_function"
                   r"|c10/cuda/CUDACachingAllocator|c10/cuda/CUDAGraphsC10|c10/util/ThreadLocalDebugInfo|c10/core/AutogradState|c10/core/TensorImpl)"
                   r"|^#.*\bTORCH_VERSION_(MAJOR|MINOR)", re.M)
named_there = set(re.findall(r"`([\w./]+\.(?:h|cpp))`", (ROOT / TORCH_PAGE).read_text()))
for name in files:
    if name.startswith("engine/") and name.endswith((".h", ".cpp")) and name.removeprefix("engine/") not in named_there:
        if found := INNER.search((ROOT / name).read_text()):
            problems.append(f"{name}: '{found[0]}' depends on the version of LibTorch, and {TORCH_PAGE} does not name the file")

for folder in ("engine", "launcher", "recipes", "test", "slurm", "hostfiles", "scripts", *FOLDERS.values()):
    if not folder.startswith("launcher/") and not (ROOT / folder / "README.md").exists():
        problems.append(f"{folder}: has no README.md")

print("\n".join(problems) or "repository: ok")
sys.exit(1 if problems else 0)
