"""Jobs over hosts for tests of the launcher: `launch`, agents over ssh, ranks that do as told (fake_rank.cpp)."""
import concurrent.futures
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import traceback

from hosts import Hosts, live

RANKS = ["print", "ready", "sleep", "60000"]


def say(promise, text):
    print(f"  {promise}: {text}", flush=True)


def eventually(condition, limit, what):
    """Seconds until the condition holds."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < limit, f"not within {limit} s: {what() if callable(what) else what}"
        time.sleep(0.02)
    return time.monotonic() - start


def all_gone(pids, limit):
    """Seconds until none of these processes lives."""
    return eventually(lambda: not any(live(pid) for pid in pids), limit, lambda: f"{[p for p in pids if live(p)]} live on")


def read(path):
    """Content of a file of /proc; empty when the process is gone."""
    try:
        return pathlib.Path(path).read_bytes()
    except OSError:
        return b""


def parent(pid):
    return int((read(f"/proc/{pid}/stat").rpartition(b")")[2].split() or [0, 0])[1])


def command_lines():
    """{pid: bytes} of all live processes of all hosts."""
    pids = [int(entry.name) for entry in pathlib.Path("/proc").iterdir() if entry.name.isdigit()]
    return {pid: read(f"/proc/{pid}/cmdline") for pid in pids if live(pid)}


class Bench:
    """The hosts, the programs where every host sees them, and all jobs, which end with it."""

    def __init__(self, hosts):
        self.hosts = hosts
        self.runs = hosts.directory / "runs"
        self.jobs = []
        self.runs.mkdir()
        self.programs = self.copy_programs("bin")

    def copy_programs(self, folder):
        target = self.hosts.directory / folder
        target.mkdir()
        for name in ("FAKE_DSTRAIN", "FAKE_RANK"):
            shutil.copy(os.environ[name], target)
        return target

    def job(self, name, hosts, script, *options, **how):
        job = Job(self, name, hosts, script, *options, **how)
        self.jobs.append(job)
        return job

    def end(self):
        for job in self.jobs:
            if job.process.poll() is None:
                job.process.kill()
                job.process.wait()

    def nothing_left(self):
        """No process of any job, on any host: ranks, agents, launchers, ssh."""
        marks = [str(self.hosts.directory / "bin").encode(), b"-F\0" + str(self.hosts.ssh_config).encode()]

        def left():
            return {pid: line for pid, line in command_lines().items() if any(mark in line for mark in marks)}

        eventually(lambda: not left(), 5, left)


class Job:
    """A `launch` in a session of its own, as a shell would start it; `hosts` is None for this machine alone."""

    def __init__(self, bench, name, hosts, script, *options, environment=None, before=(), programs=None, console=None,
                 hostfile=None, ssh_config=None, output=None, **popen):
        self.bench, self.name, self.run = bench, name, (output or bench.runs) / name
        self.console_file = bench.hosts.directory / f"{name}.console"
        programs = programs or bench.programs
        where = ["--hosts", hosts] if hosts else ["--hostfile", hostfile] if hostfile else []
        if where:
            where += ["--ssh-config", ssh_config or bench.hosts.ssh_config]
        self.started = time.monotonic()
        with open(self.console_file, "wb") as file:
            self.process = subprocess.Popen(
                [*before, programs / "fake_dstrain", "launch", "--output", self.run.parent, "--run-name", name, *where, *options,
                 "--", programs / "fake_rank", *script],
                stdin=popen.pop("stdin", subprocess.DEVNULL), stdout=console or file, stderr=file, start_new_session=True,
                env=os.environ | (environment or {}), cwd=popen.pop("cwd", bench.hosts.directory), **popen)

    def console(self):
        return self.console_file.read_text(errors="replace")

    def log(self, rank):
        path = self.run / "ranks" / f"rank{rank:04d}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def failure(self, name="failure.json"):
        return json.loads((self.run / name).read_text())

    def prints(self, text, limit=20):
        return eventually(lambda: text in self.console() or self.process.poll() is not None and text in self.console(), limit,
                          lambda: f"'{text}' in {self.console()}")

    def ready(self, *ranks, text="ready", limit=20):
        eventually(lambda: all(text in self.log(rank) for rank in ranks), limit,
                   lambda: f"'{text}' of ranks {ranks}: {self.console()}")
        return self

    def entry(self):
        return f"DSTRAIN_RUN_DIR={self.run}"

    def processes(self, host=None):
        """Ranks and what they have started."""
        return self.bench.hosts.processes(self.entry(), host)

    def rank(self, number):
        """Its process id."""
        for pid in self.processes():
            variables = read(f"/proc/{pid}/environ").split(b"\0")
            if f"RANK={number}".encode() in variables and b"\0agent\0" in read(f"/proc/{parent(pid)}/cmdline"):
                return pid
        raise AssertionError(f"{self.name}: no rank {number}: {self.console()}")

    def agent(self, rank):
        return parent(self.rank(rank))

    def ssh(self, host):
        """The local ssh to one host."""
        for pid, line in command_lines().items():
            words = line.split(b"\0")
            if words[0] == b"ssh" and host.encode() in words and parent(pid) == self.process.pid:
                return pid
        raise AssertionError(f"{self.name}: no ssh to {host}")

    def signal(self, number):
        os.kill(self.process.pid, number)

    def interrupt(self):
        """Ctrl-C: the terminal signals the whole foreground group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self, code, limit=30, leftovers=1.0):
        """Waits for the exit code, then looks for what must not be left anywhere."""
        try:
            found = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name}: did not end within {limit} s: {self.console()}") from None
        seconds = time.monotonic() - self.started
        assert found == code, f"{self.name}: exit {found}, not {code}: {self.console()}"
        self.leaves_nothing(leftovers)
        return seconds

    def leaves_nothing(self, limit=1.0):
        seconds = self.bench.hosts.wait_gone(self.entry(), limit)
        left = [path.name for path in pathlib.Path("/dev/shm").iterdir() if "dstrain" in path.name]
        assert not left, f"in /dev/shm: {left}"
        # After kill -9 of the launcher its token is left.
        if self.process.poll() != -signal.SIGKILL:
            assert not list(self.run.glob(".job-*")), f"{self.name}: {list(self.run.glob('.job-*'))}"
        return seconds


def main(tests, alone):
    """Runs the tests named on the command line, or all: first those of `alone`, which measure, then the others side by side, the
    longest first. Every job ends with the same look for leftovers (Job.end)."""
    chosen = [test for test in alone + tests if len(sys.argv) < 2 or test.__name__ in sys.argv[1:]]
    assert chosen, f"no such test: {sys.argv[1:]}"
    with Hosts(8) as hosts:
        bench = Bench(hosts)
        failed = []

        def one(test):
            start = time.monotonic()
            try:
                test(bench)
                result = "ok"
            except BaseException as error:  # the others go on
                failed.append(test.__name__)
                traceback.print_exc()
                result = f"FAILED: {error}"
            print(f"{test.__name__}: {result}, {time.monotonic() - start:.1f} s", flush=True)

        try:
            for test in chosen:
                if test in alone:
                    one(test)
            with concurrent.futures.ThreadPoolExecutor(3) as pool:
                list(pool.map(one, [test for test in chosen if test not in alone]))
            if not failed:
                bench.nothing_left()
        finally:
            bench.end()
        assert not failed, failed
