"""Real training over hosts: by hostfile over 1 + 2 + 2 slots and by Slurm over 2 and 4 nodes, with hosts lost in a step and in a
save and jobs pre-empted and put back into the queue. At equal world size the losses equal the unbroken run's bit for bit."""
import json
import subprocess
import sys
import time

from hosts import Hosts
from training import DSTRAIN, ROOT, expect_equal, losses, only_run, settings, step_of, wait_for

STEPS = 40
REACHED = 12  # where faults come: behind the first checkpoint, of step 10


class Cluster:
    def __init__(self, hosts):
        self.hosts = hosts

    def start(self, output, *options, third="h3", save_always=False):
        """Over h1, h2 and a third host with 1, 2 and 2 slots. `save_always`: after every step, to have a save at most moments."""
        hostfile = self.hosts.directory / f"hosts-{third}"
        hostfile.write_text(f"# one host with one slot, two with two\nh1 slots=1\nh2 slots=2\n{third} slots=2\n")
        command = [DSTRAIN, "launch", "recipes/quickstart.yaml", "--ssh-config", self.hosts.ssh_config, "--hostfile", hostfile,
                   "--env", "OMP_NUM_THREADS=1", *settings(output, STEPS), *options]
        if save_always:
            command += ["--set", "run.checkpoint.every=1"]
        return subprocess.Popen([*map(str, command)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                stdin=subprocess.DEVNULL)

    def finish(self, process, code=0, limit=180):
        text = process.communicate(timeout=limit)[0]
        assert process.returncode == code, f"exit {process.returncode}, expected {code}\n{text}"
        return text

    def folder(self, name):
        return self.hosts.directory / "runs" / name

    def reach(self, output, process, in_save):
        """A step behind a checkpoint; and the moment when a save has begun."""
        wait_for(lambda: step_of(output) > REACHED, f"step {REACHED}", process=process)
        if in_save:
            saves = only_run(output) / "checkpoints"
            known = set(saves.iterdir())
            wait_for(lambda: set(saves.iterdir()) - known, "a save", process=process)


def train_by_hostfile(cluster):
    whole = cluster.folder("whole")
    cluster.finish(cluster.start(whole))
    assert len(losses(only_run(whole))) == STEPS
    return only_run(whole)


def lose_host(cluster, whole, fault, heal, in_save):
    """A host is lost without restarts: exit 75, the host named; healed, --resume auto gives the unbroken run."""
    moment = "save" if in_save else "step"
    output = cluster.folder(f"{fault.__name__}-{moment}")
    process = cluster.start(output, save_always=in_save)
    cluster.reach(output, process, in_save)
    began = time.monotonic()
    fault("h2")
    text = cluster.finish(process, 75)
    took = time.monotonic() - began
    failure = json.loads((only_run(output) / "failure.json").read_text())
    assert failure["root"]["host"] == "h2" and failure["root"]["kind"] == "host", (failure, text)
    fenced = cluster.hosts.wait_gone(f"DSTRAIN_RUN_DIR={only_run(output)}", 14, "h2")
    print(f"{fault.__name__} in a {moment}: known and ended in {took:.1f} s, h2 clear {fenced:.1f} s later", flush=True)
    assert took < 16, took
    heal("h2")
    end = time.monotonic() + 20
    while cluster.hosts.run("h1", "ping", "-c1", "-W1", "h2").returncode != 0 and time.monotonic() < end:
        pass
    cluster.finish(cluster.start(output, "--resume", "auto"))
    expect_equal(only_run(output), whole, STEPS)


def go_on_without_host(cluster, whole, host, in_save):
    """Power loss of a host: the job goes on by itself on h1 and h2, from the newest checkpoint."""
    moment = "save" if in_save else "step"
    output = cluster.folder(f"crash-{moment}")
    process = cluster.start(output, "--max-restarts", "1", third=host, save_always=in_save)
    cluster.reach(output, process, in_save)
    began = time.monotonic()
    before = step_of(output)
    cluster.hosts.crash(host)
    wait_for(lambda: step_of(output) > before + 10, "new steps", process=process)
    print(f"crash of {host} in a {moment}: {time.monotonic() - began:.1f} s to 10 new steps", flush=True)
    text = cluster.finish(process)
    assert f"host {host} was lost" in text and "3 ranks on h1, h2" in text, text
    expect_equal(only_run(output), whole, STEPS, 1e-4)  # another number of ranks adds in another order


class Slurm:
    def __init__(self, hosts):
        self.hosts = hosts
        self.environment = hosts.slurm_up() | {"DSTRAIN": DSTRAIN, "OMP_NUM_THREADS": "1"}  # all nodes share this machine's cores

    def command(self, *words):
        done = subprocess.run([*map(str, words)], env=self.environment, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout.strip()

    def submit(self, nodes, output, *options):
        log = self.hosts.directory / f"{output.name}-%j.out"
        out = self.command("sbatch", "--parsable", "-N", nodes, "--ntasks-per-node=1", "--output", log, "slurm/train.sbatch",
                           "recipes/quickstart.yaml", *settings(output, STEPS), *options)
        return out.split(";")[0]

    def state(self, job):
        fields = self.command("scontrol", "show", "job", "-o", job)
        return next(f for f in fields.split() if f.startswith("JobState=")).split("=")[1]

    def log(self, output, job):
        return (self.hosts.directory / f"{output.name}-{job}.out").read_text()

    def finish(self, output, job, limit=150):
        end = time.monotonic() + limit
        while (state := self.state(job)) not in ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT"):
            assert time.monotonic() < end, f"job {job} is {state} after {limit} s:\n{self.log(output, job)}"
            time.sleep(0.2)
        assert state == "COMPLETED", f"job {job} is {state}:\n{self.log(output, job)}"


def train_by_slurm(slurm, nodes):
    whole = slurm.hosts.directory / "runs" / f"slurm{nodes}"
    job = slurm.submit(nodes, whole)
    slurm.finish(whole, job)
    assert f"{nodes} ranks on" in slurm.log(whole, job), slurm.log(whole, job)
    broken = slurm.hosts.directory / "runs" / f"preempted{nodes}"
    job = slurm.submit(nodes, broken)
    wait_for(lambda: step_of(broken) > REACHED, f"step {REACHED}", 90)
    slurm.command("scancel", "--batch", "--signal=USR1", job)  # what --signal=B:USR1@120 does before the time limit
    wait_for(lambda: slurm.state(job) == "PENDING", "the job back in the queue", 60)
    time.sleep(2)  # slurmd refuses a job whose credential is of the second in which it killed the job
    slurm.command("scontrol", "update", f"jobid={job}", "starttime=now")  # instead of Slurm's two minutes
    stopped_at = step_of(broken)
    newest = max(p.name for p in (only_run(broken) / "checkpoints").glob("step-*") if "." not in p.name)
    assert newest == f"step-{stopped_at:08d}", (newest, stopped_at)  # saved at the last step it made
    slurm.finish(broken, job)
    expect_equal(only_run(broken), only_run(whole), STEPS)
    print(f"{nodes} nodes: pre-empted at step {stopped_at}, put back, equal bit for bit", flush=True)


parts = sys.argv[1:] or ["slurm", "lost", "lost_saving", "crashed"]
with Hosts(4) as hosts:
    if "slurm" in parts:
        slurm = Slurm(hosts)
        train_by_slurm(slurm, 2)
        train_by_slurm(slurm, 4)
        hosts.slurm_down()
    if set(parts) - {"slurm"}:
        cluster = Cluster(hosts)
        unbroken = train_by_hostfile(cluster)
    for part, in_save in (("lost", False), ("lost_saving", True)):
        if part in parts:
            lose_host(cluster, unbroken, hosts.drop, hosts.undrop, in_save)
            lose_host(cluster, unbroken, hosts.cut, hosts.heal, in_save)
    if "crashed" in parts:
        go_on_without_host(cluster, unbroken, "h3", in_save=False)
        go_on_without_host(cluster, unbroken, "h4", in_save=True)
