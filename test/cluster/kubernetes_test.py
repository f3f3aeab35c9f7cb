"""The manifest of `dstrain launch --emit jobset` in four network namespaces: its command, with exactly its environment, trains there. No
Kubernetes runs: names of pods are lines of /etc/hosts, the claim is a folder that all hosts see, the recipe is the file of the ConfigMap."""
import os
import pathlib
import signal
import subprocess
import time

import yaml

from hosts import Hosts, run_command, start_command
from training import DSTRAIN, ROOT, expect_equal, losses, only_run, settings, wait_for

STEPS = 20
RECIPE = ROOT / "recipes" / "quickstart.yaml"
SECRET = "5e" * 32


class Manifest:
    """The pods of a JobSet, one on each host."""

    def __init__(self, hosts, *options):
        self.hosts = hosts
        text = run_command([DSTRAIN, "launch", RECIPE, "--emit", "jobset", "--nodes", "4", "--ranks-per-node", "1", "--image", "x",
                            "--claim", "x", "--env", "OMP_NUM_THREADS=1", *options], cwd=ROOT, stderr=subprocess.DEVNULL)
        config, jobs = yaml.safe_load_all(text)
        self.name = jobs["metadata"]["name"]
        self.job = jobs["spec"]["replicatedJobs"][0]
        pod = self.job["template"]["spec"]["template"]["spec"]
        self.container = pod["containers"][0]
        self.workspace = hosts.directory / f"claim-{self.name}"  # for its working directory
        self.workspace.mkdir()
        self.recipe = hosts.directory / f"config-{self.name}.yaml"  # for /etc/dstrain/recipe.yaml
        self.recipe.write_text(config["data"]["recipe.yaml"])
        for index in range(4):
            for host in range(4):  # as the headless service says it, to every pod
                with open(f"/etc/netns/ds-h{host + 1}/hosts", "a") as file:
                    file.write(f"10.213.7.{index + 1} {self.name}-{self.job['name']}-0-{index}.{jobs['spec']['network']['subdomain']}\n")

    def environment(self, index):
        """What Kubernetes sets for the pod of this index, and nothing else."""
        values = {"PATH": "/usr/bin:/bin", "HOME": "/root", "HOSTNAME": f"{self.name}-{self.job['name']}-0-{index}",
                  "JOB_COMPLETION_INDEX": str(index)}
        for entry in self.container["env"]:
            values[entry["name"]] = entry["value"] if "value" in entry else SECRET
        return values

    def start(self, index):
        assert self.container["workingDir"] == "/workspace"
        words = [{"dstrain": DSTRAIN, "/etc/dstrain/recipe.yaml": str(self.recipe)}.get(word, word) for word in self.container["command"]]
        return start_command(["nsenter", "-t", self.hosts._first(f"h{index + 1}"), "-n", "-u", "-p", "-m", f"--wd={self.workspace}", "--",
                              *words], env=self.environment(index))

    @property
    def run(self):
        return self.workspace / "runs" / self.name


def test_trains(hosts, whole):
    """Four pods train as four ranks here do, bit for bit, and each ends with 0."""
    manifest = Manifest(hosts, "--run-name", "trains", *settings("runs", STEPS))
    begin = time.monotonic()
    pods = [manifest.start(index) for index in range(4)]
    texts = [pod.communicate(timeout=120)[0] for pod in pods]
    assert [pod.returncode for pod in pods] == [0] * 4, texts
    assert "4 ranks on h1, h2, h3, h4 (CPU)" in texts[0], texts
    expect_equal(manifest.run, whole, STEPS)
    written = "".join(path.read_text(errors="replace") for path in manifest.workspace.rglob("*") if path.is_file())
    assert SECRET not in written and SECRET not in "".join(texts)
    print(f"  four pods trained {STEPS} steps in {time.monotonic() - begin:.1f} s")


def test_stopped_and_started_again(hosts, whole):
    """SIGTERM to all pods, as when they are deleted, saves and gives 75, which no rule of the manifest takes for final; the JobSet's next pods
    go on to the same losses."""
    manifest = Manifest(hosts, "--run-name", "again", *settings("runs", STEPS, "run.checkpoint.every=5"))
    pods = [manifest.start(index) for index in range(4)]
    wait_for(lambda: manifest.run.exists() and (manifest.run / "metrics.jsonl").exists() and len(losses(manifest.run)) >= 3, "step 3",
             process=pods[0])
    for pod in pods:  # process 1 of the container, here the child of nsenter
        for child in pathlib.Path(f"/proc/{pod.pid}/task/{pod.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGTERM)
    texts = [pod.communicate(timeout=60)[0] for pod in pods]
    codes = [pod.returncode for pod in pods]
    final = next(rule for rule in manifest.job["template"]["spec"]["podFailurePolicy"]["rules"] if "onExitCodes" in rule)["onExitCodes"]["values"]
    assert not set(codes) & set(final), (codes, texts)
    first = sorted(losses(manifest.run))
    if len(first) < STEPS:  # else it had come to its end
        assert 75 in codes, (codes, texts)
    pods = [manifest.start(index) for index in range(4)]
    texts = [pod.communicate(timeout=120)[0] for pod in pods]
    assert [pod.returncode for pod in pods] == [0] * 4, texts
    expect_equal(manifest.run, whole, STEPS)
    print(f"  stopped after step {first[-1]} with {codes}, went on to {STEPS}")


def main():
    with Hosts(4) as hosts:
        whole = hosts.directory / "whole"
        run_command([DSTRAIN, "launch", RECIPE, "--ranks", "4", *settings(whole, STEPS)], cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"})
        for test in (test_trains, test_stopped_and_started_again):
            begin = time.monotonic()
            test(hosts, only_run(whole))
            print(f"{test.__name__}: ok, {time.monotonic() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main()
