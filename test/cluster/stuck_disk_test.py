"""A disk on which nothing can be written for 20 s, under the run directory and the output of a job over two hosts: nobody is given up, no
step is lost."""
import json
import os
import pathlib
import shutil
import subprocess
import time

from hosts import Hosts, enter_own_namespaces, run_command, start_command
from training import DSTRAIN, ROOT, losses, only_run, settings, step_of, wait_for

STEPS = 60
REACHED = 12  # behind the first checkpoint, of step 10
STUCK_SECONDS = 20
DISK = pathlib.Path(os.environ.get("DSTEST_DIR", "/var/tmp/test-hosts") + "-disk")


def mount_disk():
    """An ext4 file system of its own, which can be frozen. Hosts have the mounts that are there when they begin."""
    DISK.mkdir(parents=True, exist_ok=True)
    image = DISK.with_suffix(".image")
    with open(image, "wb") as file:
        file.truncate(256 << 20)
    run_command(["mkfs.ext4", "-q", image])
    mounted = subprocess.run(["mount", "-o", "loop", image, DISK], capture_output=True, text=True)
    image.unlink()
    return mounted.stderr


def freeze():
    """The end of the freeze must not depend on this process: what writes on a frozen disk cannot even be killed."""
    return start_command(["sh", "-c", f"fsfreeze -f {DISK} && sleep {STUCK_SECONDS}; fsfreeze -u {DISK}"], start_new_session=True)


def main():
    if "DSTEST_OWN_NAMESPACES" not in os.environ:
        enter_own_namespaces()
    if problem := mount_disk():
        print(f"not played: no file system can be mounted here: {problem.strip()}")
        return
    try:
        with Hosts(2) as hosts:
            output = DISK / "runs"
            log = DISK / "job.out"
            job = start_command([DSTRAIN, "launch", "recipes/quickstart.yaml", "--ssh-config", hosts.ssh_config, "--hosts", "h1:1,h2:1",
                                 "--env", "OMP_NUM_THREADS=1", "--max-restarts", 2, *settings(output, STEPS)],
                                cwd=ROOT, stdout=open(log, "w"))
            wait_for(lambda: step_of(output) > REACHED, f"step {REACHED}", process=job)
            begin = time.monotonic()
            frozen = freeze()
            job.wait(timeout=120)
            took = time.monotonic() - begin
            assert frozen.wait() == 0, frozen.communicate()
            text = log.read_text()
            assert job.returncode == 0 and took > STUCK_SECONDS and f"done after {STEPS} of" in text, (job.returncode, took, text)
            assert sorted(losses(only_run(output))) == list(range(1, STEPS + 1)), text
            events = [json.loads(line)["kind"] for line in (only_run(output) / "events.jsonl").read_text().splitlines()]
            assert events.count("launched") == 1 and "failed" not in events and "lost" not in events, events
            print(f"stuck_disk: {STUCK_SECONDS} s, the job ended {took:.1f} s after its begin: ok")
    finally:
        run_command(["umount", DISK])
        shutil.rmtree(DISK)


if __name__ == "__main__":
    main()
