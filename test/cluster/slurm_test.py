"""dstrain in a Slurm cluster of fake hosts: exit codes (promise 10), allocation and its mistakes (11), PMIx (12), losses of agent,
controller and srun (4, 5), pre-emption and requeue (8, 31), --slurm."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

from hosts import Hosts, require, run_command, run_tests, start_command

FAKE = pathlib.Path(os.environ["FAKE_DSTRAIN"])
RANK = pathlib.Path(os.environ["FAKE_RANK"])
DSTRAIN = pathlib.Path(os.environ["DSTRAIN"])
SOURCE = pathlib.Path(__file__).resolve().parents[2]


class Cluster:
    """Hosts with Slurm, and the programs where all of them see them."""

    def __init__(self, hosts):
        self.hosts = hosts
        self.environment = {k: v for k, v in hosts.slurm_up().items() if k != "CUDA_VISIBLE_DEVICES"}
        self.folder = hosts.directory / "shared"
        self.folder.mkdir()
        for program in (FAKE, RANK):
            shutil.copy(program, self.folder)
        shutil.copy(next(file for p in FAKE.parents if (file := p / "lib/dstrain/dstrain-pmix").exists()), self.folder)
        self.fake = self.folder / FAKE.name
        self.rank = self.folder / RANK.name
        self.number = 0

    def output(self):
        self.number += 1
        return self.folder / f"runs{self.number}"

    def launch(self, output, actions, options=(), fake=None):
        """Words of a launch of fake ranks."""
        return [str(fake or self.fake), "launch", "--output", str(output), *options, "--", str(self.rank), *actions.split()]

    def start(self, words, **options):
        return start_command(words, **({"cwd": self.folder, "env": self.environment} | options))

    def run(self, words, code=0, timeout=60, **options):
        return run_command(words, code, timeout, **({"cwd": self.folder, "env": self.environment} | options))

    def slurm(self, *words):
        return self.run(words).strip()

    def batch(self, body, *options):
        script = self.folder / f"job{self.number}.sh"
        script.write_text("#!/bin/bash\n" + body)
        return self.slurm("sbatch", "--parsable", f"--output={self.folder}/job-%j.out", *options, script)

    def text_of(self, job):
        file = self.folder / f"job-{job}.out"
        return file.read_text() if file.exists() else ""

    def wait_job(self, job, limit=40):
        """Exit code of the job's script."""
        wait_for(lambda: not self.slurm("squeue", "--noheader", f"--jobs={job}"), limit, lambda: self.text_of(job))
        shown = self.slurm("scontrol", "show", "job", job)
        return int(re.search(r"ExitCode=(\d+):", shown)[1])

    def gone(self, output, limit=6):
        """No process of any run below `output` is left anywhere."""
        for run in output.iterdir():
            self.hosts.wait_gone(f"DSTRAIN_RUN_DIR={run}", limit)


def wait_for(condition, limit, text=lambda: ""):
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < limit, f"not within {limit} s: {text()}"
        time.sleep(0.1)
    return time.monotonic() - start


def only_run(output):
    return next(iter(output.iterdir()))


def failure(output, name="failure.json"):
    return json.loads((only_run(output) / name).read_text())


def agents(hosts, host):
    found = []
    for pid in hosts.pids(host):
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if words[1:3] == [b"agent", b"--dial"]:
            found.append(pid)
    return found


def running(cluster, output, ranks):
    """Waits until so many ranks have printed their line."""
    wait_for(lambda: output.exists() and sum(log.read_text().count("here") for log in output.glob("*/ranks/rank*.log")) >= ranks, 30)


def test_exit_codes(cluster):
    salloc = ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2"]
    for actions, code in [("print hi", 0), ("on 3 exit 3 all sleep 60000", 3), ("on 2 signal 11 all sleep 60000", 139),
                          ("on 1 signal 9 all sleep 60000", 137), ("on 2 enter 3 step fail 65 broken exit 65 all sleep 60000", 65)]:
        output = cluster.output()
        start = time.monotonic()
        text = cluster.run([*salloc, *cluster.launch(output, actions)], code)
        cluster.gone(output)
        print(f"  {actions!r}: {code} after {time.monotonic() - start:.1f} s")
        if code:
            assert failure(output)["root"]["rank"] == int(actions.split()[1]), text


def test_gpus(cluster):
    """An agent sees all GPUs of its node, whatever the tasks of the job were to get each."""
    for options in (["--gpus-per-node=2"], ["--ntasks-per-node=2", "--gpus-per-task=1"]):
        output = cluster.output()
        body = " ".join(cluster.launch(output, "env CUDA_VISIBLE_DEVICES", ["--tee", "all"])) + "\n"
        job = cluster.batch(body, "--nodes=2", *options)
        assert cluster.wait_job(job) == 0, cluster.text_of(job)
        logs = sorted(only_run(output).glob("ranks/rank*.log"))
        assert len(logs) == 4, (options, logs)
        assert all("0,1" in log.read_text() for log in logs), [log.read_text() for log in logs]
    output = cluster.output()
    job = cluster.batch("export CUDA_VISIBLE_DEVICES=\n" + " ".join(cluster.launch(output, "exit 0")), "--nodes=1", "--gpus-per-node=2")
    assert cluster.wait_job(job) == 64
    assert "CUDA_VISIBLE_DEVICES is set but empty" in cluster.text_of(job), cluster.text_of(job)


def test_what_is_missing_is_named(cluster):
    salloc = ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=1"]
    with tempfile.TemporaryDirectory() as folder:  # below /tmp, which is each host's own
        text = cluster.run([*salloc, *cluster.launch(cluster.output(), "exit 0")], 69, cwd=folder)
        assert f"cannot enter {folder}" in text, text
        fake = shutil.copy(FAKE, folder)
        text = cluster.run([*salloc, *cluster.launch(cluster.output(), "exit 0", fake=fake)], 69)
        # Slurm may end the step on one host before it says what that host lacks.
        assert re.search(r"h[12]: .*No such file", text) and "h1: " in text and "h2: " in text, text
    assert not os.path.exists("/tmp/ranks")


def test_node_that_is_down(cluster):
    """Named at once; srun itself would wait for ever."""
    body = f"scontrol update nodename=h2 state=down reason=testing\n{' '.join(cluster.launch(cluster.output(), 'exit 0'))}\n"
    start = time.monotonic()
    job = cluster.batch(body, "--nodes=3", "--no-kill")
    assert cluster.wait_job(job) == 69
    seconds = time.monotonic() - start
    cluster.slurm("scontrol", "update", "nodename=h2", "state=idle")
    text = cluster.text_of(job)
    assert re.search(r"h2: .*Slurm calls it down \(reason: testing\)", text), text
    assert "1 of 3 hosts" in text and seconds < 15, (seconds, text)
    print(f"  named after {seconds:.1f} s")


def test_losses(cluster):
    """Agent, controller and srun killed: nothing is left."""
    hosts = cluster.hosts
    salloc = ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=1"]

    output = cluster.output()
    job = cluster.start([*salloc, *cluster.launch(output, "print here daemon sleep 60000")])
    running(cluster, output, 2)
    for pid in agents(hosts, "h2"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    text, _ = job.communicate(timeout=20)
    assert job.returncode == 75, text
    assert failure(output)["root"]["host"] == "h2", failure(output)
    cluster.gone(output, 10)

    output = cluster.output()
    job = cluster.start([*salloc, *cluster.launch(output, "print here sleep 60000")])
    running(cluster, output, 2)
    controller = next(int(p.name) for p in pathlib.Path("/proc").iterdir() if p.name.isdigit() and has_words(p, str(output), "launch", str(cluster.fake)))
    os.kill(controller, signal.SIGKILL)
    start = time.monotonic()
    cluster.gone(output, 5)
    print(f"  controller killed: all gone after {time.monotonic() - start:.1f} s")
    job.communicate(timeout=20)

    output = cluster.output()
    job = cluster.start([*salloc, *cluster.launch(output, "print here sleep 60000")])
    running(cluster, output, 2)
    srun = next(int(p.name) for p in pathlib.Path("/proc").iterdir() if p.name.isdigit() and has_words(p, "--job-name=dstrain-agent"))
    os.kill(srun, signal.SIGKILL)
    text, _ = job.communicate(timeout=20)
    # Slurm then kills agents and ranks together; whichever the controller learns of first is the cause.
    assert job.returncode in (75, 128 + signal.SIGKILL), text
    cluster.gone(output)


def has_words(process, *words):
    try:
        line = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return all(word.encode() in line for word in words) and line[0] != b"salloc"


def test_requeue(cluster):
    """USR1 to train.sbatch: saved, 75, requeued, and the second start goes on from the checkpoint; 93 stays."""
    output = cluster.output()
    wrapper = cluster.folder / "dstrain"
    wrapper.write_text(f'#!/bin/bash\nrecipe=$2\nshift 2\nexec {cluster.fake} launch --output {output} "$@" -- {cluster.rank} $(cat "$recipe")\n')
    wrapper.chmod(0o755)
    recipe = cluster.folder / "recipe.yaml"
    environment = cluster.environment | {"DSTRAIN": str(wrapper)}
    train = ["sbatch", "--parsable", "--nodes=2", f"--output={cluster.folder}/job-%j.out", SOURCE / "slurm" / "train.sbatch", recipe, "--tee", "all"]

    recipe.write_text("print here checkpoint 7 finish-on-term sleep 60000")
    job = cluster.run(train, env=environment).strip()
    running(cluster, output, 2)
    recipe.write_text("arguments print again")
    cluster.slurm("scancel", "--signal=USR1", "--batch", job)
    wait_for(lambda: cluster.slurm("squeue", "--noheader", "--format=%T", f"--jobs={job}") == "PENDING", 20, lambda: cluster.text_of(job))
    time.sleep(2)  # slurmd refuses a job whose credential is of the second in which it killed the job
    wait_for(lambda: subprocess.run(["scontrol", "update", f"jobid={job}", "starttime=now"], env=cluster.environment,
                                    capture_output=True).returncode == 0, 20)
    assert cluster.wait_job(job) == 0, cluster.text_of(job)
    text = cluster.text_of(job)
    assert "again" in text and text.index("here") < text.index("again"), text
    assert f"--resume {output}/slurm-{job}" in text, text

    # Another job starts from what that one saved, in a run of its own.
    first, job = job, cluster.run([*train, "--resume", output / f"slurm-{job}"], env=environment).strip()
    assert cluster.wait_job(job) == 0, cluster.text_of(job)
    assert f"--resume {output}/slurm-{first}" in cluster.text_of(job) and (output / f"slurm-{job}").is_dir(), cluster.text_of(job)

    recipe.write_text("exit 93")
    job = cluster.run(train, env=environment).strip()
    assert cluster.wait_job(job) == 93, cluster.text_of(job)

    recipe.write_text("print here finish-on-term sleep 60000")
    job = cluster.run(train, env=environment).strip()
    wait_for(lambda: "here" in cluster.text_of(job), 20)
    cluster.slurm("scancel", job)
    wait_for(lambda: not cluster.slurm("squeue", "--noheader", f"--jobs={job}"), 20)
    assert "JobState=CANCELLED" in cluster.slurm("scontrol", "show", "job", job)
    cluster.gone(output)


def test_submit(cluster):
    """--slurm freezes recipe and program, and hands the script to sbatch."""
    folder = cluster.folder / "sub'mit 5% here"
    folder.mkdir()
    recipe = folder / "quickstart.yaml"
    shutil.copy(SOURCE / "recipes" / "quickstart.yaml", recipe)
    words = [DSTRAIN, "launch", recipe, "--slurm", "--nodes", "2", "--ranks-per-node", "1", "--sbatch=--comment=a b", "--time", "5"]
    script = cluster.run([*words, "--dry-run"], cwd=folder)
    assert not (folder / "runs").exists() and "#SBATCH --nodes=2\n" in script, script
    environment = cluster.environment | {"WANDB_API_KEY": "canary-4711"}
    text = cluster.run(words, cwd=folder, env=environment)
    job = re.search(r"job (\d+) is in the queue", text)[1]
    frozen = next(iter((folder / "runs").iterdir()))
    recipe.write_text("broken")
    assert DSTRAIN.read_bytes() == (frozen / "program/bin/dstrain").read_bytes()
    assert "canary" not in (frozen / "job.sbatch").read_text()
    shown = cluster.slurm("scontrol", "show", "job", job)
    assert f"WorkDir={folder}\n" in shown and "NumNodes=2" in shown and "Requeue=1" in shown and "Comment=a b" in shown, shown
    cluster.run([DSTRAIN, "recipe", "check", frozen / "quickstart.yaml"])
    printed = frozen / f"slurm-{job}.out"  # it starts, from the frozen files
    wait_for(lambda: printed.exists() and f"2 ranks on h1, h2, run directory runs/slurm-{job}" in printed.read_text(), 20,
             lambda: printed.exists() and printed.read_text())
    cluster.slurm("scancel", job)
    wait_for(lambda: not cluster.slurm("squeue", "--noheader", f"--jobs={job}"), 40)
    # A printed script stands alone: submitted from elsewhere, it starts with the lines of setup before it.
    (folder / "setup.sh").write_text("echo setup on $(hostname)\n")
    recipe.write_text((frozen / "quickstart.yaml").read_text())
    printed = cluster.folder / "printed.sh"
    printed.write_text(cluster.run([DSTRAIN, "launch", recipe, "--emit", "sbatch", "--nodes", "2", "--ranks-per-node", "1", "--setup", folder / "setup.sh"], cwd=folder))
    recipe.unlink()
    job = cluster.slurm("sbatch", "--parsable", printed)
    output = folder / f"slurm-{job}.out"
    wait_for(lambda: output.exists() and f"2 ranks on h1, h2, run directory runs/slurm-{job}" in output.read_text(), 20,
             lambda: output.exists() and output.read_text())
    assert "setup on h1" in output.read_text(), output.read_text()
    cluster.slurm("scancel", job)
    wait_for(lambda: not cluster.slurm("squeue", "--noheader", f"--jobs={job}"), 40)
    text = cluster.run([DSTRAIN, "launch", frozen / "quickstart.yaml", "--slurm", "--partition", "none"], 69, cwd=folder)
    assert "sbatch did not take" in text and "invalid partition" in text, text


def test_pmix(cluster):
    """Started once on each node by srun or mpirun: task 0 leads, the others serve it."""
    srun = ["srun", "--mpi=pmix", "--nodes=3", "--ntasks-per-node=1", "--kill-on-bad-exit=0"]
    mpirun = ["mpirun", "--allow-run-as-root", "--mca", "plm_rsh_args", f"-F {cluster.hosts.ssh_config}", "--host", "h1,h2,h3",
              "--map-by", "ppr:1:node"]
    for start in (srun, mpirun):
        output = cluster.output()
        begin = time.monotonic()
        cluster.run([*start, *cluster.launch(output, "print here", ["--ranks", "6"])])
        assert len(list(only_run(output).glob("ranks/rank*.log"))) == 6
        print(f"  {start[0]}: {time.monotonic() - begin:.1f} s")
    output = cluster.output()
    # srun's own code is the largest of all, so that the job's 3 is there too.
    cluster.run([*srun, *cluster.launch(output, "on 2 exit 3 all sleep 60000", ["--max-restarts", "1"])], 3)
    assert failure(output)["root"]["rank"] == 2
    assert only_run(output).joinpath("failure.1.json").exists(), "the second start had no agents"
    cluster.gone(output)

    # A task that dies before the exchange: no hang, and its node is named.
    early = cluster.folder / "early.sh"
    early.write_text('#!/bin/sh\n[ "$SLURM_PROCID" = 1 ] && exit 0\nexec "$@"\n')
    early.chmod(0o755)
    begin = time.monotonic()
    text = cluster.run([*srun, early, *cluster.launch(cluster.output(), "exit 0")], 69, timeout=40)
    seconds = time.monotonic() - begin
    assert "index 1 (h2)" in text and seconds < 30, (seconds, text)
    print(f"  dead before the exchange: named after {seconds:.1f} s")

    text = cluster.run(["srun", "--mpi=none", "--nodes=2", "--ntasks-per-node=1", *cluster.launch(cluster.output(), "exit 0")], 64)
    assert "cannot find each other" in text, text
    text = cluster.run([*srun[:2], "--nodes=1", "--ntasks-per-node=2", *cluster.launch(cluster.output(), "exit 0")], 64)
    assert "were started on one node" in text, text


def test_lost_node(cluster):
    """A node crashes: known in 10 s, the job goes on without it; the next one is told which node it is. Last: the node stays away."""
    output, second = cluster.output(), cluster.output()
    first = cluster.launch(output, "print here in 0 sleep 60000 all in 1 print again", ["--max-restarts", "1", "--tee", "all"])
    body = f"{' '.join(first)}\necho first $?\n{' '.join(cluster.launch(second, 'exit 0'))}\necho second $?\n"
    job = cluster.batch(body, "--nodes=3", "--no-kill")
    running(cluster, output, 3)
    start = time.monotonic()
    cluster.hosts.crash("h3")
    wait_for(lambda: "first" in cluster.text_of(job), 40, lambda: cluster.text_of(job))
    text = cluster.text_of(job)
    print(f"  went on without it and ended after {time.monotonic() - start:.1f} s")
    assert "first 0" in text and "again" in text and "without h3" in text, text
    assert failure(output, "failure.1.json")["root"]["host"] == "h3"
    wait_for(lambda: "second" in cluster.text_of(job), 60, lambda: cluster.text_of(job))
    text = cluster.text_of(job)
    text += "".join(log.read_text() for log in second.glob("*/ranks/srun.log"))
    assert "second 69" in text and re.search("h3: .*(could not start a task there|Slurm calls it down)", text), text
    assert "1 of 3 hosts" in text, text
    print(f"  next start refused after {time.monotonic() - start:.1f} s")
    cluster.gone(output)


if __name__ == "__main__":
    require("sbatch", "mpirun")
    with Hosts(3) as all_hosts:
        run_tests(globals(), Cluster(all_hosts))
