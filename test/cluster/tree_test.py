"""The ssh tree on fake hosts: who starts whom, falling back, hosts that die, ranks. Arguments: only the tests of these names."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

from hosts import Hosts
from ssh_test import PROBE, probe, ssh_processes, wait_until

TREE = ("--tree-from", "4", "--tree-radix", "2")  # h1 starts h4 and h7, h2 starts h5 and h8, h3 starts h6


def let_hosts_log_in(hosts, names):
    """Hosts that may log in to every other one."""
    for host in names:
        hosts.run(host, "mount", "--bind", hosts.ssh_config, "/etc/ssh/ssh_config", check=True)


def login_source(hosts, host):
    """Name of who logged in to the host, in order; h254 is this machine."""
    lines = (hosts.directory / host / "sshd.log").read_text().splitlines()
    return ["h" + line.split(" from 10.213.7.")[1].split()[0] for line in lines if "Accepted publickey" in line]


def agents(hosts, program):
    """{pid: host} of live agents."""
    found = {}
    for host in hosts.names:
        for pid in hosts.pids(host):
            try:
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0].endswith(program.encode()) and b"agent" in words:
                found[pid] = host
    return found


def test_tree():
    with Hosts(8) as hosts:
        shutil.copy(PROBE, hosts.directory / "probe")
        let_hosts_log_in(hosts, hosts.names)
        found, seconds = probe(hosts, hosts.names, *TREE, program=hosts.directory / "probe")
        assert all(line.get("hello") == "probe" for line in found.values()), found
        sources = {host: login_source(hosts, host) for host in hosts.names}
        print(f"8 agents of a tree within {seconds:.2f} s: {sources}")
        parents = {"h4": "h1", "h5": "h2", "h6": "h3", "h7": "h1", "h8": "h2"}
        assert sources == {host: [parents.get(host, "h254")] for host in hosts.names}, "one login each"
        assert not ssh_processes(hosts)

        # An agent that is killed ends no other, nor does its host's crash.
        staying = subprocess.Popen([PROBE, "launch", "--config", hosts.ssh_config, "--program", hosts.directory / "probe", *TREE,
                                    "--stay", "6", "--", *hosts.names], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        lines = [json.loads(staying.stdout.readline()) for _ in hosts.names]
        assert all(line.get("hello") == "probe" for line in lines), lines
        os.kill(next(pid for pid, host in agents(hosts, "probe").items() if host == "h1"), signal.SIGKILL)
        hosts.crash("h2")
        lost = [json.loads(line)["host"] for line in staying.communicate(timeout=30)[0].splitlines()]
        assert sorted(lost) == ["h1", "h2"], lost
        wait_until(lambda: not agents(hosts, "probe"))


def test_tree_falls_back():
    with Hosts(8) as hosts:
        program = hosts.directory / "probe"
        shutil.copy(PROBE, program)
        let_hosts_log_in(hosts, ["h2", "h3"])
        found, seconds = probe(hosts, hosts.names, *TREE, program=program)
        assert all(line.get("hello") == "probe" for line in found.values()), found
        assert login_source(hosts, "h4") == login_source(hosts, "h7") == ["h254"], "h1 may not log in to them"
        assert login_source(hosts, "h5") == ["h2"]
        print(f"8 agents, 2 of them after all from here, within {seconds:.2f} s")

        # One that is to start others is dead; one of those is dead too and is told by its class.
        let_hosts_log_in(hosts, ["h1"])
        hosts.drop("h2")
        hosts.crash("h5")
        found, seconds = probe(hosts, hosts.names, *TREE, program=program)
        assert found["h2"]["kind"] == "timeout" and found["h5"]["kind"] in ("refused", "timeout"), found
        assert all(found[host].get("hello") for host in ("h1", "h3", "h4", "h6", "h7", "h8")), found
        assert seconds < 2 * (5 + 2), f"{seconds:.1f} s"

        # The hosts cannot reach us by TCP: they say so, and are started from here.
        hosts.undrop("h2")
        for host in ("h4", "h6", "h7", "h8"):
            hosts.run(host, "iptables", "-I", "OUTPUT", "-o", "eth0", "-p", "tcp", "--syn", "-j", "REJECT", check=True)
        names = [host for host in hosts.names if host != "h5"]
        done = subprocess.run([PROBE, "launch", "--config", hosts.ssh_config, "--program", program, *TREE, "--tree-limit", "4", "--", *names],
                              capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(lines) == 7 and all(line.get("hello") == "probe" for line in lines), lines
        said = [line for line in done.stderr.splitlines() if line.startswith("say ")]
        assert len(said) == 1 and "4 of 7 hosts are started from here" in said[0] and "cannot reach the controller" in said[0], done.stderr
        wait_until(lambda: not agents(hosts, "probe"), 5)


class Launch:
    """A job of one rank on each host."""

    def __init__(self, hosts, name, script, *options):
        for program in ("FAKE_DSTRAIN", "FAKE_RANK"):
            shutil.copy(os.environ[program], hosts.directory)
        self.run = hosts.directory / "runs" / name
        self.console = hosts.directory / f"{name}.console"
        with open(self.console, "wb") as file:
            self.process = subprocess.Popen(
                [hosts.directory / "fake_dstrain", "launch", "--output", self.run.parent, "--run-name", name, "--hosts",
                 ",".join(f"{host}:1" for host in hosts.names), "--ssh-config", hosts.ssh_config, "--ssh-tree-from", "4",
                 "--ssh-tree-radix", "2", *options, "--", hosts.directory / "fake_rank", *script],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, cwd=hosts.directory)

    def ready(self):
        logs = [self.run / "ranks" / f"rank{rank:04d}.log" for rank in range(8)]
        wait_until(lambda: all(log.exists() and "ready" in log.read_text() for log in logs), 30)
        return self

    def end(self, code):
        found = self.process.wait(60)
        assert found == code, f"exit {found}: {self.console.read_text()}"
        return self.console.read_text()


def test_jobs_in_a_tree():
    with Hosts(8) as hosts:
        let_hosts_log_in(hosts, hosts.names)
        Launch(hosts, "whole", ["print", "ready", "sleep", "200"]).end(0)
        assert [login_source(hosts, host) for host in hosts.names] == [["h254"]] * 3 + [["h1"], ["h2"], ["h3"], ["h1"], ["h2"]]
        wait_until(lambda: not agents(hosts, "fake_dstrain"))

        # The agent that has started others is killed: it alone is lost, and the job goes on without it.
        job = Launch(hosts, "killed", ["print", "ready", "sleep", "60000"], "--max-restarts", "1").ready()
        victim = next(pid for pid, host in agents(hosts, "fake_dstrain").items() if host == "h2")
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: "restart 1 of 1 from the beginning, without h2" in job.console.read_text(), 20)
        assert "host h2 was lost" in job.console.read_text(), job.console.read_text()
        wait_until(lambda: len(agents(hosts, "fake_dstrain")) == 7 and "h2" not in agents(hosts, "fake_dstrain").values(), 20)

        # Ctrl-C twice ends all of them.
        os.killpg(job.process.pid, signal.SIGINT)
        time.sleep(0.2)
        os.killpg(job.process.pid, signal.SIGINT)
        job.process.wait(20)
        wait_until(lambda: not agents(hosts, "fake_dstrain"), 5)

        # Ctrl-C at any moment of the start, and kill -9.
        for number, delay in ((signal.SIGINT, 0.1), (signal.SIGINT, 0.5), (signal.SIGINT, 0.9), (signal.SIGKILL, 0.4), (signal.SIGKILL, 0.8)):
            job = Launch(hosts, f"ended-{number}-{delay}", ["sleep", "60000"])
            time.sleep(delay)
            os.killpg(job.process.pid, number)
            job.process.wait(20)
            wait_until(lambda: not agents(hosts, "fake_dstrain") and not ssh_processes(hosts), 12)


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_") and name in (sys.argv[1:] or [name]):
            start = time.monotonic()
            print(name, flush=True)
            test()
            print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)
