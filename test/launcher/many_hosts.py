#!/usr/bin/env python3
"""1,024 hosts played by processes of this machine: controller, agents and ranks are real, a script in place of srun starts all agents at once.
Not a part of ctest, as it takes minutes on two cores; for every night, or by hand:
  python3 test/launcher/many_hosts.py --build build/release [--hosts 1024]
Jobs: all ranks start and end well; one is killed, and all others end. Each prints its seconds, and the controller's CPU time and memory."""
import argparse
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import time

SRUN = """#!{python}
import os, resource, subprocess, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
names = next(word for word in sys.argv if word.startswith("--nodelist=")).split("=", 1)[1].split(",")
command = sys.argv[sys.argv.index("--chdir=/") + 1:]
line = sys.stdin.buffer.readline()
agents = []
for name in names:
    environment = os.environ | {{"SLURMD_NODENAME": name, "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1"}}
    agents.append(subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, cwd="/"))
for agent in agents:  # as srun's broadcast: all have it at once
    agent.stdin.write(line)
    agent.stdin.flush()
sys.stdin.buffer.read()  # the controller's lifeline
for agent in agents:
    agent.stdin.close()
sys.exit(max((agent.wait() for agent in agents), default=0))
"""


def marked(mark):
    """Processes that carry the job's mark in their environment."""
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if mark in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                pass
    return found


class Job:
    def __init__(self, folder, build, hosts, name, script):
        self.hosts, self.run = hosts, folder / "runs" / name
        self.mark = f"MANY_HOSTS={folder.name}-{name}".encode()
        programs = folder / "bin"
        programs.mkdir(exist_ok=True)
        srun = programs / "srun"
        srun.write_text(SRUN.format(python=sys.executable))
        srun.chmod(0o755)
        key, value = self.mark.decode().split("=")
        environment = {name: text for name, text in os.environ.items() if not name.startswith("SLURM")} | {
            "PATH": f"{programs}:{os.environ['PATH']}", key: value, "SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": str(hosts),
            "SLURM_JOB_NODELIST": f"n[0-{hosts - 1}]", "SLURM_NTASKS_PER_NODE": "1", "CUDA_VISIBLE_DEVICES": ""}
        tests = pathlib.Path(build).resolve() / "test" / "launcher"
        self.begin = time.monotonic()
        self.before = resource.getrusage(resource.RUSAGE_CHILDREN)
        # A soft limit as users have it; the controller has to raise it.
        self.process = subprocess.Popen(
            ["sh", "-c", 'ulimit -S -n 1024; exec "$@"', "sh", tests / "fake_dstrain", "launch", "--output", folder / "runs", "--run-name", name,
             "--tee", "none", "--", tests / "fake_rank", *script.split()],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.pid = self.process.pid

    def memory_and_cpu(self):
        """Peak MiB and CPU seconds of the controller, until it has ended."""
        status = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        peak = next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0)
        ticks = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return peak, (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")

    def wait(self, limit):
        seen = (0, 0)
        while self.process.poll() is None and time.monotonic() - self.begin < limit:
            try:
                seen = self.memory_and_cpu()
            except (OSError, IndexError):
                pass
            time.sleep(0.2)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            sys.exit(f"the job has not ended within {limit} s")
        output = self.process.stdout.read()
        seconds = time.monotonic() - self.begin
        time.sleep(1)  # srun's script collects its agents
        left = marked(self.mark)
        return output, seconds, seen, left


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release", help="Folder of a build with fake_dstrain and fake_rank. Default: build/release.")
    parser.add_argument("--hosts", type=int, default=1024, help="Default: 1024.")
    parser.add_argument("--limit", type=float, default=600, help="Seconds that a job may take. Default: 600.")
    options = parser.parse_args()
    victim = options.hosts // 2
    # The others sleep: ranks that meet in a folder would take all CPU from agents, which are then given up.
    jobs = {"well": ("print hello", 0), "killed": (f"print hello on {victim} sleep {20 * options.hosts} signal 9 all sleep 600000", 137)}
    with tempfile.TemporaryDirectory(prefix="many-hosts-", dir="/var/tmp") as folder:
        for name, (script, code) in jobs.items():
            job = Job(pathlib.Path(folder), options.build, options.hosts, name, script)
            output, seconds, (memory, cpu), left = job.wait(options.limit)
            assert job.process.returncode == code, f"{name}: exit {job.process.returncode}\n{output[-3000:]}"
            greeted = sum("hello" in log.read_text() for log in (job.run / "ranks").glob("rank*.log"))
            assert greeted == options.hosts, f"{name}: {greeted} of {options.hosts} ranks have started\n{output[-3000:]}"
            assert not left, f"{name}: processes {left} are left"
            if code == 137:
                assert f"rank {victim} " in output and f"n{victim}" in output, output[-3000:]
            print(f"{name}: {options.hosts} hosts, {seconds:.1f} s to its end, controller {cpu:.1f} s of CPU and {memory:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
