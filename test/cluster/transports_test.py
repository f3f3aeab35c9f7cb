"""Real training by each way of starting it over hosts: `launch --slurm`, `--ship` of an installed tree, `launch` once per node by
srun and mpirun, plain ranks. Two ranks each, so that all losses equal those of two ranks here, bit for bit. Without arguments all
tests; with names only those."""
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import sys
import tempfile
import time

from hosts import Hosts, require, run_command, run_tests, start_command
from training import DSTRAIN, ROOT, expect_equal, losses, only_run, settings, step_of, wait_for

STEPS = 20
RECIPE = ROOT / "recipes" / "quickstart.yaml"
BUILD = pathlib.Path(DSTRAIN).resolve().parents[1]


class Cluster:
    """Hosts with Slurm, and the losses that all runs must have."""

    def __init__(self, hosts):
        require("sbatch", "mpirun")
        self.hosts = hosts
        # Sums depend on the number of threads, which by itself follows from the ranks per host.
        self.environment = hosts.slurm_up() | {"OMP_NUM_THREADS": "1"}
        self.local = self.folder("local")
        self.run([DSTRAIN, "launch", RECIPE, "--ranks", "2", *settings(self.local, STEPS)])
        assert len(losses(only_run(self.local))) == STEPS

    def folder(self, name):
        return self.hosts.directory / "runs" / name

    def start(self, words, **options):
        return start_command(words, **({"cwd": ROOT, "env": self.environment} | options))

    def run(self, words, code=0, limit=90, **options):
        return run_command(words, code, limit, **({"cwd": ROOT, "env": self.environment} | options))

    def expect_equal(self, run):
        expect_equal(run, only_run(self.local), STEPS)


def test_submitted(cluster):
    """--slurm: the recipe is edited while the job waits; what was submitted is trained."""
    here = cluster.folder("submit")
    here.mkdir(parents=True)
    recipe = here / "quickstart.yaml"
    shutil.copy(RECIPE, recipe)
    text = cluster.run([DSTRAIN, "launch", recipe, "--slurm", "--nodes", "2", "--ranks-per-node", "1", "--sbatch=--hold",
                        *settings(here / "runs", STEPS)], cwd=here)
    job = re.search(r"job (\d+) is in the queue", text)[1]
    recipe.write_text(RECIPE.read_text().replace("lr: 1.5e-3", "lr: 1.5e-1"))
    assert recipe.read_text() != RECIPE.read_text()
    cluster.run(["scontrol", "release", job])
    printed = next((here / "runs").glob("*-slurm-*")) / f"slurm-{job}.out"

    def state():
        return re.search(r"JobState=(\w+)", cluster.run(["scontrol", "show", "job", job]))[1]

    wait_for(lambda: state() not in ("PENDING", "RUNNING", "COMPLETING"), "the job's end", 60)
    assert state() == "COMPLETED", printed.read_text()
    assert "2 ranks on h1, h2" in printed.read_text(), printed.read_text()
    cluster.expect_equal(here / "runs" / f"slurm-{job}")


def test_shipped(cluster):
    """An installed tree that the hosts lack is copied to them and trains there; the second start copies nothing."""
    hosts = cluster.hosts
    site = os.environ.get("DSTRAIN_SITE_PACKAGES") or next(
        str(p) for p in map(pathlib.Path, sys.path) if (p / "torch" / "lib" / "libtorch_cpu.so").exists())
    for host in ("h1", "h2"):
        home = hosts.directory / host / "home"
        hosts.configure_sshd(host, f"SetEnv HOME={home} XDG_CACHE_HOME=/tmp/cache DSTRAIN_SITE_PACKAGES={site}")
    with tempfile.TemporaryDirectory() as tree:  # below /tmp, which is each host's own
        cluster.run(["cmake", "--install", BUILD, "--prefix", tree, "--strip"])
        environment = cluster.environment | {"DSTRAIN_SITE_PACKAGES": site}
        launch = [f"{tree}/bin/dstrain", "launch", RECIPE, "--hosts", "h1:1,h2:1", "--ssh-config", hosts.ssh_config]
        text = cluster.run([*launch, *settings(cluster.folder("lacking"), STEPS)], 69, env=environment)
        assert "h1: no binary" in text and "h2: no binary" in text, text
        copies = {host: hosts.directory / host / "tmp/cache/dstrain/ship" for host in ("h1", "h2")}
        for turn in ("first", "second"):
            output = cluster.folder(f"shipped-{turn}")
            begin = time.monotonic()
            job = cluster.start([*launch, "--ship", *settings(output, STEPS)], env=environment)
            wait_for(lambda: step_of(output), "the first step", process=job)
            began = time.monotonic() - begin
            found = hosts.processes(f"DSTRAIN_RUN_DIR={only_run(output)}", "h2")
            programs = {os.readlink(f"/proc/{pid}/exe") for pid in found}
            text = job.communicate(timeout=60)[0]
            assert job.returncode == 0, text
            names = [sorted(p.name for p in folder.iterdir()) for folder in copies.values()]
            assert len(names[0]) == 1 and names[0] == names[1], names
            assert programs == {f"/tmp/cache/dstrain/ship/{names[0][0]}/bin/dstrain"}, (programs, found)
            cluster.expect_equal(only_run(output))
            size = sum(f.stat().st_size for f in copies["h1"].rglob("*") if f.is_file()) / 2**20
            print(f"  {turn} start: {began:.1f} s to the first step; {size:.0f} MiB on each of 2 hosts")


def mpirun(cluster, *where):
    return ["mpirun", "--allow-run-as-root", "--mca", "plm_rsh_args", f"-F {cluster.hosts.ssh_config}", "--host", "h1:2,h2:2",
            "-x", "OMP_NUM_THREADS", *where]


def test_once_per_node(cluster):
    """`dstrain launch` as the one task of each node, by srun and by mpirun."""
    for start in (["srun", "--mpi=pmix", "--nodes=2", "--ntasks-per-node=1"], mpirun(cluster, "--map-by", "ppr:1:node")):
        output = cluster.folder(f"once-{start[0]}")
        begin = time.monotonic()
        text = cluster.run([*start, DSTRAIN, "launch", RECIPE, "--ranks", "2", *settings(output, STEPS)])
        assert "2 ranks on h1, h2" in text, text
        cluster.expect_equal(only_run(output))
        print(f"  {start[0]}: {time.monotonic() - begin:.1f} s")


def test_plain_ranks(cluster):
    """`dstrain engine` as the task itself, without agents."""
    for start in (["srun", "--mpi=pmix", "--nodes=2", "--ntasks-per-node=1"], mpirun(cluster, "--map-by", "ppr:1:node")):
        output = cluster.folder(f"plain-{start[0]}")
        begin = time.monotonic()
        cluster.run([*start, DSTRAIN, "engine", RECIPE, *settings(output, STEPS)])
        cluster.expect_equal(only_run(output))
        print(f"  {start[0]}: {time.monotonic() - begin:.1f} s")


def test_ranks_that_never_come(cluster):
    """Promise 12 for plain ranks: one that dies before the exchange delays the others by at most 30 s, and is named."""
    early = cluster.folder("early.sh")
    early.write_text('#!/bin/sh\nrank=${SLURM_PROCID:-$OMPI_COMM_WORLD_RANK}\n'
                     'for gone in $GONE; do [ $rank = $gone ] && exit 0; done\nexec "$@"\n')
    early.chmod(0o755)
    srun = ["srun", "--mpi=pmix", "--nodes=2", "--ntasks-per-node=2", "--kill-on-bad-exit=0"]
    cases = [(srun, "1 2", "2 of the 4 ranks did not come within"),
             (srun, "0", "task 0 of this srun or mpirun gave no address by PMIx"),
             (mpirun(cluster, "-x", "GONE", "--map-by", "ppr:2:node"), "3", "1 of the 4 ranks did not come within")]
    begin = time.monotonic()
    jobs = [cluster.start([*start, early, DSTRAIN, "engine", RECIPE, *settings(cluster.folder(f"early{i}"), STEPS)],
                          env=cluster.environment | {"GONE": gone}) for i, (start, gone, _) in enumerate(cases)]

    def finish(job):
        return job.communicate(timeout=90)[0], time.monotonic() - begin

    with concurrent.futures.ThreadPoolExecutor() as pool:
        ends = list(pool.map(finish, jobs))
    for (start, gone, said), job, (text, seconds) in zip(cases, jobs, ends):
        assert job.returncode == 69 and said in text, (job.returncode, text)
        if gone != "0":
            assert re.search(rf"ranks? {gone.replace(' ', ', ')}$", text, re.MULTILINE), text
        print(f"  {start[0]}, without {gone}: named {seconds:.1f} s after the start (limit 30 s)")
        assert seconds < 30, seconds


def test_stopped_rank(cluster):
    """Promise 6 with the engine's own record: SIGSTOP to a rank that trains on h2."""
    output, limit = cluster.folder("stopped"), 3
    job = cluster.start([DSTRAIN, "launch", RECIPE, "--hosts", "h1:2,h2:2", "--ssh-config", cluster.hosts.ssh_config,
                         "--hang-timeout", limit, *settings(output, 100000)])
    # A rank's record counts from 0 and may be a step behind the metrics of rank 0.
    wait_for(lambda: step_of(output) > 21, "step 21", process=job)
    found = cluster.hosts.processes(f"DSTRAIN_RUN_DIR={only_run(output)}", "h2")
    rank = next(pid for pid in found if b"RANK=3" in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    os.kill(rank, signal.SIGSTOP)
    begin = time.monotonic()
    text = job.communicate(timeout=60)[0]
    seconds = time.monotonic() - begin
    assert job.returncode == 75, text
    failure = json.loads((only_run(output) / "failure.json").read_text())
    root = failure["root"]
    assert (root["kind"], root["rank"], root["host"]) == ("hang", 3, "h2"), (root, text)
    assert root["step"] > 20 and root["action"] and re.match(r"collective \d+, ", root["collective"]), root
    stopped = next(group for group in failure["ranks"] if 3 in group["ranks"])
    assert stopped["ranks"] == [3] and stopped["states"][0]["process_state"] == "T", failure["ranks"]
    others = str([group["stack"] for group in failure["ranks"] if 3 not in group["ranks"]])
    # A function of MKL has no unwind tables: its callers are not known.
    in_mkl = stopped["stack"][1].endswith(" in libtorch_cpu.so") and "::" not in stopped["stack"][1]
    assert in_mkl or "dstrain::Trainer::run " in str(stopped["stack"]), failure["ranks"]
    assert "GlooCommunicator" in others, failure["ranks"]
    cluster.hosts.wait_gone(f"DSTRAIN_RUN_DIR={only_run(output)}", 2)
    print(f"  ended {seconds:.1f} s after SIGSTOP, limit {limit} s: {failure['summary']}")
    assert seconds < limit + 4, seconds


if __name__ == "__main__":
    with Hosts(2) as all_hosts:
        run_tests(globals(), Cluster(all_hosts))
