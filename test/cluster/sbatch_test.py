"""Generated batch scripts: what sbatch makes of them beside what the import does. Each is submitted held; the import's launch is printed as a
batch script, which is submitted held, too; then the two jobs must agree. What sbatch refuses must be refused by the import or by sbatch."""
import concurrent.futures
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import time

from slurm_queue import Queue

DSTRAIN = pathlib.Path(os.environ["DSTRAIN"])
SOURCE = pathlib.Path(__file__).resolve().parents[2]
COUNT = 500
BATCH = 50

SHORT = {"nodes": "N", "ntasks": "n", "time": "t", "partition": "p", "account": "A", "gpus": "G", "cpus-per-task": "c", "constraint": "C",
         "nodelist": "w", "exclude": "x", "dependency": "d", "begin": "b", "licenses": "L", "distribution": "m", "job-name": "J", "output": "o"}
# Options with values that both take; None: without a value.
OTHERS = {"time": ["10", "90:30", "12:00:00", "2-12", "1-0:30", "1-2:03:04", "UNLIMITED", "0"], "partition": ["big", "debug"], "account": ["lab", "team-a"],
          "qos": ["high"], "comment": ["a b", "it's", 'say "x"', "a#b", "back\\slash", "$HOME `x` ;|&<>"], "constraint": ["a100|v100", "gpu&hbm80g", "[a100|v100]"],
          "exclusive": [None, "user"], "mem": ["0", "10G", "4096"], "mem-per-cpu": ["2G"], "nice": [None, "5", "-7"], "licenses": ["matlab:2"],
          "exclude": ["n1", "n[1-3]"], "mail-type": ["END,FAIL"], "mail-user": ["a@b.c"], "signal": ["USR1@600", "SIGUSR1@300", "B:TERM@90", "10@30", "RB:USR2@45"],
          "distribution": ["block", "cyclic:block", "block:cyclic,NoPack", "*"], "gpu-bind": ["closest", "none", "single:1", "map_gpu:0,1", "verbose,per_task:1"],
          "get-user-env": [None, "10L"], "export": ["ALL", "NONE", "ALL,A=1"], "switches": ["1", "2@10:00"], "contiguous": [None], "tmp": ["100"],
          "mincpus": ["2"], "no-requeue": [None], "requeue": [None], "overcommit": [None], "oversubscribe": [None], "propagate": ["NONE"],
          "threads-per-core": ["1"], "wckey": ["k"], "profile": ["task"], "cpu-freq": ["high"], "delay-boot": ["5"], "use-min-nodes": [None],
          "spread-job": [None], "wait-all-nodes": ["1"], "priority": ["5"], "kill-on-invalid-dep": ["yes"], "acctg-freq": ["30"], "job-name": ["x"],
          "output": ["o.txt"], "error": ["e.txt"], "open-mode": ["append", "truncate"], "no-kill": [None, "off"], "hold": [None], "verbose": [None],
          "dependency": ["afterany:1"], "begin": ["2035-01-01", "2035-01-01T10:30"], "deadline": ["2036-01-01"], "time-min": ["5"], "hint": ["nomultithread"],
          "network": ["x"], "ignore-pbs": [None], "chdir": ["/tmp"], "input": ["/dev/null"], "ntasks-per-core": ["1"], "gid": ["0"]}
# A line that is wrong, or that Slurm reads otherwise than it looks.
ODD = ["#SBATCH --nodez=2", "#SBATCH --partit=big", "#SBATCH --comment \"\" -t 5", "#SBATCH -N two", "#SBATCH --hold=yes", "#SBATCH foo", "#SBATCH -- foo",
       "#SBATCH --", "#SBATCH --comment='open", "#SBATCH hetjob", "#SBATCH : -N 2", "#SBATCH -N 2-4", "#SBATCH -N 1k", "#SBATCH --gres=gpu:0", "#SBATCH -t soon",
       "#SBATCH -t 1:2:3:4", "#SBATCH --signal=NONE@5", "#SBATCH --signal=USR1@99999", "#SBATCH --distribution=heap", "#SBATCH --gpu-bind=lost", "#SBATCH --open-mode=x",
       "#SBATCH -n 0", "#SBATCH -n 1e1", "#SBATCH -c -1", "#SBATCH --ntasks-per-node=x", "#SBATCH --no-kill=maybe", "#SBATCH -N 2\\ --mem=1", "#SBATCH --mem=lots",
       "#SBATCH --exclusive=me", "#SBATCH --gres=gpu:4,gpu:v100:2", "#SBATCH --gpus-per-node=a100", "#SBATCH -G x", "#SBATCH --partition=none", "#SBATCH --nice=99999999999",
       "#SBATCH --time", "#SBATCH --partition \\", "#SBATCH -pbig -N3 extra#", "#SBATCH --mem_per_cpu=2", "#SBATCH -Z", "#SBATCH --comment=a\\ b", "#SLURM --mem=1G",
       "#SBATCHX", "#SBATCH--mem=1G", "#SBATCH --tasks-per-node=2 --ntasks-per-node=4", "#SBATCH --mem=1 --mem-per-cpu=2", "#SBATCH --gpus-per-socket=1", "#PBS -l mem=1gb"]
COMPARED = ["NumCPUs", "TimeLimit", "TimeMin", "Partition", "Account", "QOS", "Features", "Comment", "Nice", "MinMemoryNode", "MinMemoryCPU", "OverSubscribe", "Licenses",
            "Dependency", "ReqNodeList", "ExcNodeList", "Requeue", "Contiguous", "Network", "MinTmpDiskNode", "Switches", "Deadline", "DelayBoot", "StartTime",
            "WCKey", "MailUser", "MailType", "Reservation", "CpusPerTres", "MemPerTres"]


class Generator:
    """Scripts of one seed; equal on every machine."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def quoted(self, value):
        """The value as a word of sbatch, in one of the ways to write it."""
        way = self.random.randrange(3)
        plain = re.fullmatch(r"[\w.,:@/+*\[\]|&-]+", value)
        if plain and way:
            return value
        if way == 1 or "'" in value:
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        return "'" + value.replace("\\", "\\\\") + "'"

    def option(self, name, value):
        if value is None:
            return f"--{name}"
        word = self.quoted(value)
        optional = name in ("exclusive", "nice", "get-user-env", "no-kill", "propagate")
        ways = [f"--{name}={word}"] + ([] if optional else [f"--{name} {word}"])
        if name in SHORT:
            ways += [f"-{SHORT[name]} {word}", f"-{SHORT[name]}{word}"]
        return self.random.choice(ways)

    def resources(self):
        """Nodes, tasks and GPUs in the ways that say them."""
        choose = self.random.choice
        nodes, each, kind = choose([1, 2, 3, 4, 8]), choose([1, 2, 4, 8]), choose(["", "", "a100:"])
        options = [("nodes", choose([str(nodes), f"{nodes}-{nodes}", str(nodes)]))]
        tasks = [("ntasks-per-node", str(each))], [("tasks-per-node", str(each))], [("ntasks", str(nodes * each))]
        gpus = [("gpus-per-node", f"{kind}{each}")], [("gres", f"gpu:{kind}{each}")], [("gres", f"nvme:200,gpu:{kind}{each}")], [("gpus", f"{kind}{nodes * each}")]
        way = self.random.randrange(6)
        if way == 0:
            options += choose(tasks)
        elif way == 1:
            options += choose(gpus)
        elif way == 2:
            options += choose(gpus) + choose([[], choose(tasks), [("ntasks-per-node", "1")]])
        elif way == 3:
            options += choose(tasks) + [("gpus-per-task", f"{kind}1")]
        elif way == 4:
            options += [("gres", f"gpu:{kind}{each}"), ("gpus", str(nodes * each))]
        if self.random.random() < 0.3:
            options.append(("cpus-per-task", choose(["1", "3", "8"])))
        if self.random.random() < 0.1:
            options.append(("nodelist", f"n[1-{nodes}]"))
        if self.random.random() < 0.06:
            options = choose([[("ntasks", "8")], [("gpus", "4")], [("nodelist", "n[1-2]")], [("ntasks", "8"), ("ntasks-per-node", "4")],
                              [("nodes", "4"), ("ntasks", "2")], [("nodes", "3"), ("gpus", "8")], [("nodes", "2"), ("ntasks", "5")],
                              [("nodes", "2"), ("ntasks-per-gpu", "1"), ("gpus", "4")]])
        return options

    def script(self):
        options = self.resources()
        for name in self.random.sample(sorted(OTHERS), self.random.randrange(5)):
            options.append((name, self.random.choice(OTHERS[name])))
        self.random.shuffle(options)
        lines = []
        while options:
            part = [self.option(*options.pop()) for _ in range(min(len(options), self.random.randint(1, 3)))]
            lines.append("#SBATCH " + self.random.choice([" ", "  ", "\t"]).join(part) + self.random.choice(["", "", "", " # why", "#why", "  ", " \\"]))
            lines += self.random.choice([[], [], [], [""], ["# a comment"], ["  # SBATCH"], [" #SBATCH --nodes=7"], ["##SBATCH --mem=1"]])
        odd = self.random.random() < 0.3
        if odd:
            lines.insert(self.random.randrange(len(lines) + 1), self.random.choice(ODD))
        body = self.random.choice(["true", "srun hostname", "export A=1\n#SBATCH --nodes=9\ntrue"])
        text = "\n".join(["#!/bin/bash", *lines, body, ""])
        if odd and self.random.random() < 0.05:
            text = self.random.choice([text.replace("\n", "\r\n"), text.removeprefix("#!/bin/bash\n")])
        return text, odd


def import_script(queue, script):
    """(the printed script or None, what the import said)."""
    imported = subprocess.run([DSTRAIN, "recipe", "import-deepspeed", "--sbatch", script, "--json"], capture_output=True, text=True)
    if imported.returncode != 0:
        assert imported.returncode == 64, (script.read_text(), imported)
        return None, imported.stderr
    words = json.loads(imported.stdout)["launch"]
    nodes = int(words[words.index("--nodes") + 1]) if "--nodes" in words else 1
    ranks = nodes * next((int(words[words.index(name) + 1].split(":")[-1]) for name in ("--gpus-per-node", "--ranks-per-node") if name in words), 1)
    printed = subprocess.run([DSTRAIN, "launch", SOURCE / "recipes" / "quickstart.yaml", *words, "--emit", "sbatch", "--set", f"batch.global={ranks}",
                              "--set", "batch.micro=1"], capture_output=True, text=True, cwd=queue.folder)
    assert printed.returncode == 0, (script.read_text(), words, printed.stderr)
    ours = script.with_suffix(".ours")
    ours.write_text(printed.stdout)
    return ours, imported.stdout


def gpus_of(job):
    """(GPUs of the whole job, their types, other resources of a node)."""
    total, kinds, others = 0, set(), set()
    nodes, tasks = int(job["NumNodes"].split("-")[0]), int(job["NumTasks"])
    per = {"TresPerNode": nodes, "TresPerTask": tasks, "TresPerJob": 1}
    for name, times in per.items():
        count = 0
        for entry in filter(None, job.get(name, "").split(",")):
            parts = entry.split(":")[1:]
            if parts[0] != "gpu":
                others.add(entry)
                continue
            count += times * (int(parts[-1]) if parts[-1].isdigit() else 1)
            kinds |= {p for p in parts[1:] if not p.isdigit()}
        assert not (count and total and count != total), job
        total = count or total
    return total, kinds, others


def compare(script, theirs, ours, signals):
    differ = [f"{key}: {theirs.get(key)}, ours {ours.get(key)}" for key in COMPARED if theirs.get(key) != ours.get(key)]
    if theirs["NumNodes"].split("-")[0] != ours["NumNodes"].split("-")[0]:
        differ.append(f"NumNodes: {theirs['NumNodes']}, ours {ours['NumNodes']}")
    if gpus_of(theirs) != gpus_of(ours):
        differ.append(f"GPUs: {gpus_of(theirs)}, ours {gpus_of(ours)}")
    if signals[0]:
        times = [re.sub(r"^[^@]*$", "@60", text).split("@")[1] for text in signals]
        if times[0] != times[1] or bool(re.match("B?R.*:", signals[0])) != bool(re.match("B?R.*:", signals[1])):
            differ.append(f"signal: {signals[0]}, ours {signals[1]}")
    assert not differ, "\n".join([script.read_text(), "ours:", script.with_suffix(".ours").read_text().split("\nset --")[0], *differ])


def main():
    start = time.monotonic()
    counts = {"both take": 0, "both refuse": 0, "refused by name": 0, "refused by sbatch": 0}
    with Queue() as queue:
        generator = Generator(45)
        (queue.folder / "first.sh").write_text("#!/bin/sh\n")
        assert queue.submit(queue.folder / "first.sh")[0] == "1"  # on which others depend
        for first in range(0, COUNT, BATCH):
            cases = []
            for number in range(first, first + BATCH):
                text, odd = generator.script()
                script = queue.folder / f"{number}.sh"
                script.write_bytes(text.encode())
                cases.append((script, odd))
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                imports = list(pool.map(lambda case: import_script(queue, case[0]), cases))
            taken = []
            for (script, odd), (ours, said) in zip(cases, imports):
                job, told, refusal = queue.submit(script)
                if ours is None:
                    assert f"{script}:" in said, (script.read_text(), said)
                    counts["refused by name" if job else "both refuse"] += 1
                    continue
                our_job, our_told, our_refusal = queue.submit(ours)
                if job is None:
                    # What it refuses may be a value that the import names and does not copy.
                    assert our_job is None or "is not copied" in said, f"sbatch refuses, the import takes:\n{script.read_text()}\n{refusal}"
                    counts["refused by sbatch"] += 1
                    continue
                assert our_job, f"sbatch takes the script and not ours:\n{script.read_text()}\n{ours.read_text()}\n{our_refusal}"
                counts["both take"] += 1
                taken.append((script, job, our_job, (told, our_told)))
            jobs = queue.jobs()
            for script, job, our_job, signals in taken:
                compare(script, jobs[job], jobs[our_job], signals)
    print(f"{COUNT} scripts, {', '.join(f'{name}: {count}' for name, count in counts.items())}, {time.monotonic() - start:.0f} s")
    assert counts["both take"] > COUNT // 2 and counts["both refuse"] > COUNT // 20, counts


if __name__ == "__main__":
    sys.exit(main())
