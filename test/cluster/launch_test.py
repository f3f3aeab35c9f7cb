"""The launcher's promises over hosts, end to end: `launch`, agents over ssh, ranks that do as told (fake_rank.cpp). Without
arguments all; with names only those. Every job ends with the same look for leftovers (Job.end)."""
import concurrent.futures
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback

from hosts import Hosts, live

LEASE = 10  # seconds; launcher/controller.h
RANKS = ["print", "ready", "sleep", "60000"]
SPARE = [f"h{i}" for i in range(4, 8)]  # hosts for faults; h1-h3 stay whole


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
        # After kill -9 of the launcher nobody is left to take its token away.
        if self.process.poll() != -signal.SIGKILL:
            assert not list(self.run.glob(".job-*")), f"{self.name}: {list(self.run.glob('.job-*'))}"
        return seconds


# ---- one after the other, since they measure


def test_a_killed_rank_ends_all(bench):
    """Promise 1."""
    for where, limit, ranks in (("h1:2,h2:2", 2.0, 4), (None, 1.0, 4)):
        measured = []
        for attempt in range(3):  # the machine may be busy with something else
            options = [] if where else ["--ranks", str(ranks)]
            job = bench.job(f"killed-{'hosts' if where else 'local'}-{attempt}", where,
                            ["on", "0", "ignore-term", "all", "enter", "7", "forward", *RANKS], *options)
            job.ready(*range(ranks))
            pids = list(job.processes())
            assert len(pids) == ranks, pids
            os.kill(job.rank(2), signal.SIGKILL)
            start = time.monotonic()
            measured.append(all_gone(pids, 10))
            job.end(137)
            ended = time.monotonic() - start
            root = job.failure()["root"]
            assert (root["rank"], root["signal"], root["step"], root["kind"]) == (2, 9, 7, "signal"), root
            if measured[-1] <= limit:
                break
        say(1, f"all ranks down {measured[-1]:.2f} s after kill -9 of one, one of them ignoring SIGTERM, launch ended after "
               f"{ended:.2f} s ({where or 'local'}; limit {limit} s)")
        assert measured[-1] <= limit, measured


def test_resumes_after_a_killed_rank(bench):
    """Promise 2, but for the losses, which real training shows."""
    measured = []
    for attempt in range(3):
        job = bench.job(f"resumes-{attempt}", "h1:2,h2:2",
                        ["arguments", "on", "0", "in", "0", "checkpoint", "00000005", "all", "enter", "5", "step", "print",
                         "ready", "on", "0", "in", "0", "sleep", "60000", "on", "1", "in", "0", "sleep", "60000", "on", "2",
                         "in", "0", "sleep", "60000", "on", "3", "in", "0", "sleep", "60000", "all", "enter", "6", "step",
                         "print", "stepped"], "--max-restarts", "1")
        job.ready(*range(4))
        os.kill(job.rank(3), signal.SIGKILL)
        start = time.monotonic()
        job.ready(*range(4), text="stepped")
        measured.append(time.monotonic() - start)
        job.end(0)
        for rank in range(4):
            first, second = [line for line in job.log(rank).splitlines() if "recipe.yaml" in line]
            assert first.endswith("recipe.yaml") and second.endswith(f"recipe.yaml --resume {job.run}"), job.log(rank)
        assert "restart 1 of 1 from the newest checkpoint\n" in job.console(), job.console()
        assert job.failure("failure.1.json")["root"]["rank"] == 3 and not (job.run / "failure.json").exists()
        if measured[-1] <= 5:
            break
    say(2, f"first new step {measured[-1]:.2f} s after kill -9 of a rank (limit 5 s)")
    assert measured[-1] <= 5, measured


def test_a_stopped_terminal_stalls_nobody(bench):
    """Promise 30."""
    lines = 100_000
    reading, writing = os.pipe()
    job = bench.job("stuck-terminal", "h1:4,h2:4", ["meet", "lines", str(lines), "print", "done"], "--tee", "all", console=writing)
    os.close(writing)
    logs = [job.run / "ranks" / f"rank{rank:04d}.log" for rank in range(8)]
    written = eventually(lambda: all("done" in job.log(rank)[-10:] for rank in range(8)), 25, lambda: [log.stat() for log in logs])
    time.sleep(max(0, 5 - written))  # all this while nobody reads
    shown = b""
    while block := os.read(reading, 1 << 16):
        shown += block
    os.close(reading)
    job.end(0)
    for rank, log in enumerate(logs):
        assert log.read_text() == "".join(f"rank {rank} line {i}\n" for i in range(lines)) + "done\n", f"rank {rank}"
    text = shown.decode()
    dropped = sum(int(line.split("dropped ")[1].split()[0]) for line in text.splitlines() if "dropped " in line)
    whole = sum(" line " in line for line in text.splitlines())
    assert dropped > 0 and "the console was too slow" in text, text[-500:]
    for line in text.splitlines():
        if " line " in line:
            prefix, rest = line.split("] rank ")
            assert prefix.removeprefix("[rank ") == rest.split()[0], f"interleaved: {line}"
    say(30, f"8 ranks wrote {8 * lines} lines in {written:.1f} s while nobody read the console; logs complete, {whole} lines shown whole, "
            f"{dropped} counted as dropped")
    for attempt in range(3):  # lines wait 0.2 s for each other
        folded = bench.job(f"folded-{attempt}", "h1:4,h2:4", ["meet", "print", "equal", "on", "5", "print", "odd\x1b[2J one"], "--tee",
                           "all")
        folded.end(0)
        if "[ranks 0-7]" in folded.console():
            break
    assert "[ranks 0-7] equal\n" in folded.console(), folded.console()
    assert "[rank 5] odd^[[2J one\n" in folded.console(), folded.console()


# ---- side by side


def test_the_cause_is_blamed(bench):
    """Promise 3: 20 rounds of peers whose ends arrive before the cause's."""
    def one(turn):
        cause, way = turn % 4, ("signal 11", "signal 6", "exit 3", "error")[turn // 4 % 4]
        delay = str(10 * turn)
        script = ["meet"]
        if way == "error":  # recorded first, told last
            script += ["on", str(cause), "fail", "3", "loss is not finite", "sleep", str(100 + 10 * turn), "exit", "3"]
            peer = ["sleep", "50", "exit", "1"]
        else:
            script += ["on", str(cause), "sleep", delay, *way.split()]
            peer = ["fail", "75", "lost a peer: connection reset", "exit", "75"]
        for other in range(4):
            if other != cause:
                script += ["on", str(other), *peer]
        job = bench.job(f"blame-{turn}", ("h1:2,h2:2", "h1:1,h3:3")[turn % 2], script)
        job.end({"signal 11": 139, "signal 6": 134}.get(way, 3))
        assert job.failure()["root"]["rank"] == cause, job.failure()

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(one, range(20)))
    say(3, "the rank with SIGSEGV, SIGABRT, exit code 3 or an error of its own was blamed in 20 of 20 rounds, up to 0.3 s after its "
           "peers' ends")


def test_a_killed_agent_leaves_nothing(bench):
    """Promise 4."""
    for attempt in range(3):
        job = bench.job(f"agent-{attempt}", "h1:1,h2:2", ["ignore-term", "daemon", "child", *RANKS]).ready(0, 1, 2)
        eventually(lambda: len(job.processes("h2")) == 6, 5, lambda: job.processes("h2"))
        ranks = [job.rank(1), job.rank(2)]
        os.kill(job.agent(1), signal.SIGKILL)
        direct = all_gone(ranks, 1.0)
        everything = direct + bench.hosts.wait_gone(job.entry(), 5, "h2")
        job.end(75)
        if everything < 3:
            break
    root = job.failure()["root"]
    assert root["kind"] == "host" and root["host"] == "h2" and root["rank"] is None, root
    assert "h2: killed " in job.console() and "that the lost agent had left" in job.console(), job.console()
    assert everything < 3, everything
    say(4, f"kill -9 of an agent: its ranks gone after {direct:.2f} s (limit 1 s), daemonised grandchildren on that host after "
           f"{everything:.2f} s (limit 3 s)")
    again = bench.job("agent-restart", "h1:1,h2:1", ["daemon", "print", "ready", "on", "0", "in", "0", "sleep", "60000", "on", "1",
                                                     "sleep", "60000"], "--max-restarts", "1").ready(0, 1)
    os.kill(again.agent(1), signal.SIGKILL)
    again.end(0)
    assert "restart 1 of 1 from the beginning, without h2" in again.console(), again.console()


def test_a_killed_controller_leaves_nothing(bench):
    """Promise 5."""
    job = bench.job("controller", "h1:2,h2:1", ["ignore-term", "daemon", "child", *RANKS]).ready(0, 1, 2)
    pids = [*job.processes(), job.agent(0), job.agent(2)]
    job.signal(signal.SIGKILL)
    job.process.wait()
    seconds = all_gone(pids, LEASE + 2)
    job.leaves_nothing()
    say(5, f"kill -9 of launch: nothing left after {seconds:.2f} s (limit {LEASE + 2} s)")
    job = bench.job("ssh", "h1:2,h2:1", ["ignore-term", "daemon", "child", *RANKS]).ready(0, 1, 2)
    pids = [*job.processes(), job.agent(0), job.agent(2)]
    os.kill(job.ssh("h2"), signal.SIGKILL)
    seconds = all_gone(pids, LEASE + 2)
    job.end(75)
    assert job.failure()["root"]["host"] == "h2"
    say(5, f"kill -9 of one ssh: nothing left after {seconds:.2f} s, exit 75")


def test_lost_hosts(bench):
    """Promise 7, and promise 5 for a host that hears nothing: cable cut, black hole, loss of power."""
    cut, dropped, crashed, orphan = SPARE
    go_on = bench.hosts.directory / "go-on"
    script = ["daemon", "ignore-term", "print", "ready", "on", "0", "in", "0", "sleep", "60000", "on", "1", "sleep", "60000",
              "on", "0", "in", "1", "print", "resumed", "until", str(go_on)]
    kept = {host: bench.job(f"lost-{host}", f"h1:1,{host}:1", script, "--max-restarts", "1") for host in (cut, dropped, crashed)}
    failing = bench.job("lost-no-restart", f"h1:1,{cut}:1", ["daemon", *RANKS])
    deserted = bench.job("lost-launch", f"h1:1,{orphan}:1", ["daemon", *RANKS])
    jobs = [*kept.values(), failing, deserted]
    for job in jobs:
        job.ready(0, 1)
        eventually(lambda job=job: len(job.processes()) == 4, 5, job.processes)
    start = time.monotonic()
    bench.hosts.cut(cut)
    bench.hosts.cut(orphan)
    bench.hosts.drop(dropped)
    bench.hosts.crash(crashed)
    deserted.signal(signal.SIGKILL)
    deserted.process.wait()
    for job in [*kept.values(), failing]:
        assert job.processes("h1"), "ends before the loss is known"

    # Each host fences itself while it is still unreachable, and the loss is known here.
    known, fenced, resumed = {}, {}, {}
    while len(known) < 4 or len(fenced) < 4 or len(resumed) < 3:
        now = time.monotonic() - start
        assert now < 25, f"known {known}, fenced {fenced}, resumed {resumed}: {[job.console() for job in jobs]}"
        for host, job in [*kept.items(), ("no restart", failing)]:
            if "was lost" in job.console():
                known.setdefault(host, now)
        for host, job in kept.items():
            if "resumed" in job.log(0):
                resumed.setdefault(host, now)
        for host, mine in ((cut, [kept[cut], failing]), (dropped, [kept[dropped]]), (crashed, [kept[crashed]]), (orphan, [deserted])):
            if not any(job.processes(host) for job in mine):
                fenced.setdefault(host, now)
        time.sleep(0.05)
    say(7, f"loss known after {known[cut]:.1f} s (cut), {known[dropped]:.1f} s (dropped), {known[crashed]:.1f} s (crashed); limit 10 s")
    say(7, f"no process left on the host, still unreachable, after {fenced[cut]:.1f} s (cut), {fenced[dropped]:.1f} s (dropped), "
           f"{fenced[orphan]:.1f} s (cut, launch killed); lease {LEASE} s")
    say(7, f"running again on the remaining host after {resumed[cut]:.1f} s (cut), {resumed[dropped]:.1f} s (dropped), "
           f"{resumed[crashed]:.1f} s (crashed)")
    assert max(known.values()) <= 10 and max(fenced.values()) <= LEASE + 2, (known, fenced)
    failing.end(75)
    root = failing.failure()["root"]
    assert root["kind"] == "host" and root["host"] == cut and root["rank"] is None, root
    assert f"not reached to clear up: {cut} (" in failing.console(), failing.console()
    deserted.leaves_nothing()

    # Hosts that come back do not disturb.
    before = {host: job.processes() for host, job in kept.items()}
    bench.hosts.heal(cut)
    bench.hosts.heal(orphan)
    bench.hosts.undrop(dropped)
    time.sleep(3)
    for host, job in kept.items():
        assert job.processes() == before[host] and job.processes("h1"), f"{host}: {before[host]}, {job.processes()}"
    go_on.touch()
    for host, job in kept.items():
        job.end(0)
        assert f"restart 1 of 1 from the beginning, without {host}" in job.console(), job.console()
        assert job.failure("failure.1.json")["root"]["host"] == host


def test_jobs_leave_each_other_alone(bench):
    """Promise 9, and another job of the same user on the same hosts under Ctrl-C, crash, cancel and kill -9 of the first."""
    go_on = bench.hosts.directory / "survivor-may-end"
    survivor = bench.job("survivor", "h1:1,h2:1", ["daemon", "print", "ready", "until", str(go_on), "print", "went on"]).ready(0, 1)
    eventually(lambda: len(survivor.processes()) == 4, 5, survivor.processes)
    before = survivor.processes()

    def untouched():
        assert survivor.processes() == before and survivor.process.poll() is None, f"{before}, {survivor.processes()}"

    job = bench.job("twice", "h1:2,h2:2", ["ignore-term", "daemon", "child", "print", "ready", "on", "1", "signal", "19", "on",
                                           "3", "vfork", "all", "sleep", "60000"]).ready(0, 1, 2, 3)
    job.interrupt()
    job.prints("once more ends at once")
    start = time.monotonic()
    job.interrupt()
    job.end(130)
    seconds = time.monotonic() - start
    say(9, f"second Ctrl-C to the end {seconds:.2f} s, with ranks that ignore SIGTERM, are stopped, wait in the kernel (limit 20 s)")
    assert seconds < 20
    untouched()
    bench.job("crashes", "h1:1,h2:1", ["on", "1", "signal", "11", "all", "sleep", "60000"]).end(139)
    untouched()
    job = bench.job("cancelled", "h1:1,h2:1", ["finish-on-term", *RANKS]).ready(0, 1)
    job.signal(signal.SIGTERM)
    job.end(75)
    untouched()
    job = bench.job("murdered", "h1:1,h2:1", RANKS).ready(0, 1)
    job.signal(signal.SIGKILL)
    job.process.wait()
    job.leaves_nothing(5)
    untouched()
    go_on.touch()
    survivor.end(0)
    assert "went on" in survivor.log(0) and "went on" in survivor.log(1)
    say(9, "another job on the same hosts kept its processes and ended with 0")


def test_exit_codes(bench):
    """Promise 10."""
    rows = [(["exit", "3"], 3), (["exit", "255"], 255), (["exit", "75"], 75), (["signal", "9"], 137), (["signal", "11"], 139),
            (["signal", "6"], 134), (["signal", "15"], 143)]

    def one(row):
        (action, code), where = row
        options = [] if where else ["--ranks", "2"]
        job = bench.job(f"code-{'hosts' if where else 'local'}-{'-'.join(action)}", where,
                        ["on", "1", *action, "all", "sleep", "60000"], *options)
        job.end(code)
        failure = job.failure()
        assert failure["exit_code"] == code and failure["root"]["rank"] == 1, failure

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(one, [(row, where) for row in rows for where in (None, "h1:1,h2:1")]))
    say(10, f"{len(rows)} endings give the same code locally and over ssh")


def test_scheduler_signals(bench):
    """Promise 8, as far as the launcher has to do with it."""
    for number in (signal.SIGTERM, signal.SIGUSR1):
        job = bench.job(f"asked-{number}", "h1:1,h2:2", ["finish-on-term", *RANKS]).ready(0, 1, 2)
        job.signal(number)
        start = time.monotonic()
        job.end(75)
        assert "stopped as asked; go on with --resume" in job.console() and not (job.run / "failure.json").exists()
        say(8, f"{signal.Signals(number).name} to launch: ranks over hosts finish, exit 75 after {time.monotonic() - start:.2f} s")


def test_bad_hosts(bench):
    """Promise 13: every bad host in one line of its class, and nothing started on the good ones."""
    directory = bench.hosts.directory
    programs = bench.copy_programs("programs")
    (directory / "empty").mkdir()
    other = directory / "other-version"
    other.write_text(f"#!/bin/sh\nFAKE_BUILD='fake 2' exec {bench.programs}/fake_dstrain \"$@\"\n")
    other.chmod(0o755)
    bench.hosts.run("h2", "mount", "--bind", directory / "empty", programs, check=True)
    bench.hosts.run("h3", "mount", "--bind", other, programs / "fake_dstrain", check=True)
    black_hole = "h8"
    bench.hosts.drop(black_hole)
    config = directory / "ssh_config_bad"
    config.write_text(bench.hosts.ssh_config.read_text() + f"""
Host closed-port
  HostName 10.213.7.1
  Port 23
Host wrong-key unknown-key no-key
  User root
  HostName 10.213.7.3
  UserKnownHostsFile {directory}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
Host wrong-key
  HostKeyAlias h4
Host unknown-key
  HostKeyAlias nobody
Host no-key
  HostKeyAlias h3
  IdentityFile none
  IdentityAgent none
""")
    hostfile = directory / "bad-hosts"
    expected = {"no-such-host.invalid": "name", "closed-port": "refused", "wrong-key": "host key", "unknown-key": "host key",
                "no-key": "authentication", black_hole: "timeout", "h2": "no binary", "h3": "version"}
    hostfile.write_text("h1 slots=2\n" + "".join(f"{h} slots=1\n" for h in expected))
    for attempt in range(3):
        job = bench.job(f"bad-hosts-{attempt}", None, RANKS, ssh_config=config, hostfile=hostfile, programs=programs)
        seconds = job.end(69)
        if seconds < 7:
            break
    console = job.console()
    lines = console.splitlines()
    for host, kind in expected.items():
        found = [line for line in lines if line.startswith(f"{host}: ") or line.startswith(f"error: {host}: ")]
        assert len(found) == 1 and f"{host}: {kind}" in found[0], f"{host}: {kind}: {console}"
    assert not [line for line in lines if line.startswith("h1: ")] and "8 of 9 hosts cannot take part" in console, console
    assert "nothing was started" in console and not list((job.run / "ranks").iterdir()), console
    assert seconds < 7, f"{seconds:.1f} s is more than ConnectTimeout + 2 s"
    bench.hosts.undrop(black_hole)
    say(13, f"8 bad hosts of 9, each in one line with its class, exit 69 after {seconds:.1f} s (limit 7 s), nothing started")


def test_missing_folders(bench):
    """A working directory that some hosts lack, a run directory that is not shared."""
    directory = bench.hosts.directory
    here = directory / "somewhere" / "here"
    here.mkdir(parents=True)
    private = directory / "private"
    private.mkdir()
    for host in ("h2", "h3"):
        bench.hosts.run(host, "mount", "-t", "tmpfs", "none", here.parent, check=True)
        bench.hosts.run(host, "mount", "-t", "tmpfs", "none", private, check=True)
    for name, said, how in (("cwd", f"cannot enter {here}", {"cwd": here}),
                            ("unshared", f"does not see the run directory {private}/unshared", {"output": private})):
        job = bench.job(name, "h1:1,h2:1,h3:1", RANKS, **how)
        seconds = job.end(69)
        for host in ("h2", "h3"):
            found = [line for line in job.console().splitlines() if f"{host}: {said}" in line]
            assert len(found) == 1, job.console()
        assert "h1: " not in job.console() and not list((job.run / "ranks").iterdir()), job.console()
        say(13, f"{said.split(' /')[0]}: one line per host, exit 69 after {seconds:.1f} s, nothing started")


def test_jobs_at_once(bench):
    """Promise 15."""
    occupant = "import socket,time; s = socket.create_server(('', 29500)); print('bound', flush=True); time.sleep(60)"
    first = bench.hosts._first("h1")
    with subprocess.Popen(["nsenter", "-t", str(first), "-n", "-p", "-m", "--", sys.executable, "-c", occupant],
                          stdout=subprocess.PIPE, text=True) as occupying:
        assert occupying.stdout.readline() == "bound\n"
        jobs = [bench.job(f"at-once-{i}", "h1:2,h2:1", ["connect", "print", "met"]) for i in range(8)]
        for job in jobs:
            job.end(0, limit=60)
            assert all(job.log(rank) == "met\n" for rank in range(3)), job.console()
        occupying.kill()
    say(15, "8 jobs at once on the same hosts while port 29500 is taken: all met and ended with 0")


def test_values_arrive_byte_for_byte(bench):
    """Promise 17."""
    every = bytes(range(1, 256))
    values = ["' \" $() ; \n ü".encode(), every, b"$(touch canary) `touch canary` \\ * ~ # && | > canary"]
    for turn, value in enumerate(values):
        name = f"bytes-{turn}"
        job = bench.job(name, "h1:1,h2:1", ["env", "ODD", "print", value.replace(b"\r", b"")], "--env", b"ODD=" + value)
        job.end(0)
        for rank in range(2):
            found = (job.run / "ranks" / f"rank{rank:04d}.log").read_bytes()
            assert found == b"ODD=" + value + b"\n" + value.replace(b"\r", b"") + b"\n", found
    left = [str(path) for path in bench.hosts.directory.rglob("canary*")] + [
        host for host in ("h1", "h2") if bench.hosts.run(host, "sh", "-c", "ls /tmp/canary canary 2>/dev/null").stdout]
    assert not left, left
    say(17, f"{len(values)} values, one of them with all of 255 bytes, equal in environment and arguments behind ssh")


def test_secrets_stay_secret(bench):
    """Promise 19 and show 6."""
    canaries = {"WANDB_API_KEY": "canary-0a1b2c-wandb", "HF_TOKEN": 'canary-"3d4e5f\\huggingface', "OWN_PASSWORD": "canary-6a7b8c-own",
                "TYPED_SECRET": 'canary-"9d0e1f\\typed'}
    script = []
    for name in canaries:
        script += ["env", name]
    script += ["print", "ready", "on", "1", "until", str(bench.hosts.directory / "fail-now"), "env", "DSTRAIN_JOB_SECRET", "fail", "3",
               f"bad key {canaries['HF_TOKEN']}", "exit", "3", "all", "sleep", "60000"]
    environment = {name: canaries[name] for name in list(canaries)[:3]}
    options = ["--tee", "all", "--env", "OWN_PASSWORD", "--env", "TYPED_SECRET=" + canaries["TYPED_SECRET"]]
    # The words of `launch` itself are the user's own; the ranks' script has a canary only to fail with, by its file.
    script[script.index(f"bad key {canaries['HF_TOKEN']}")] = "bad key"
    job = bench.job("secrets", "h1:1,h2:1", script, *options, environment=environment).ready(0, 1)
    secret = next(x for x in pathlib.Path(f"/proc/{job.rank(0)}/environ").read_bytes().split(b"\0") if x.startswith(b"DSTRAIN_JOB_SECRET="))
    shown = command_lines()
    mine = shown.pop(job.process.pid)
    assert canaries["TYPED_SECRET"].encode() in mine, "the scan finds what is there"
    for pid in job.processes():
        variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        assert all(f"{name}={value}".encode() in variables for name, value in canaries.items()), "not arrived"
    searched = [value.encode() for value in canaries.values()] + [secret.partition(b"=")[2]]
    for pid, line in shown.items():
        assert not any(value in line for value in searched), f"{pid}: {line}"
    (bench.hosts.directory / "fail-now").touch()
    job.end(3)
    for name in canaries:
        assert all(f"{name}=[secret]\n" in job.log(rank) for rank in range(2)), job.log(0)
    assert "DSTRAIN_JOB_SECRET=[secret]\n" in job.log(1)
    dry = bench.job("secrets-dry", "h1:1,h2:1", [], *options, "--dry-run", environment=environment)
    dry.end(0)
    assert "WANDB_API_KEY=[secret]" in dry.console(), dry.console()
    num_files = 0
    for path in [*job.run.rglob("*"), job.console_file, dry.console_file]:
        if path.is_file():
            num_files += 1
            content = path.read_bytes()
            found = [value for value in searched if value in content or json.dumps(value.decode())[1:-1].encode() in content]
            assert not found, f"{path}: {found}: {content}"
    assert json.loads((job.run / "environment.json").read_text())["command_line"]
    say(19, f"5 canaries: in no command line of {len(shown)} processes, in none of {num_files} files and consoles")


def test_no_progress_ends_a_job(bench):
    """Promise 31, and restarts that progress refills."""
    job = bench.job("no-progress", "h1:1,h2:1", ["enter", "4", "step", "print", "started", "on", "1", "signal", "11", "all", "sleep",
                                                 "60000"], "--max-restarts", "10")
    seconds = job.end(93)
    attempts = job.log(0).count("started")
    assert attempts == 3 and "3 starts in a row came no further than step 4" in job.console(), job.console()
    assert job.failure()["exit_code"] == 93 and job.failure("failure.2.json")["exit_code"] == 139, job.failure()
    say(31, f"no progress: {attempts} starts, exit 93 after {seconds:.1f} s")
    script = ["print", "started"]
    for start in range(4):
        script += ["on", "1", "in", str(start), "enter", str(start + 1), "step", "signal", "11"]
    script += ["on", "0", "in", "4", "exit", "0", "on", "1", "in", "4", "exit", "0", "all", "sleep", "60000"]
    job = bench.job("progress", "h1:1,h2:1", script, "--max-restarts", "1")
    job.end(0)
    assert job.log(0).count("started") == 5 and job.console().count("restart 1 of 1 ") == 4, job.console()
    say(31, "progress refills: 4 restarts with --max-restarts 1")
    job = bench.job("used-up", "h1:1,h2:1", ["print", "started", "on", "1", "exit", "3", "all", "sleep", "60000"], "--max-restarts", "1")
    job.end(3)
    assert job.log(0).count("started") == 2 and "all 1 restarts are used" in job.console(), job.console()
    job = bench.job("hopeless", "h1:1,h2:1", ["print", "started", "on", "1", "fail", "64", "bad recipe", "exit", "64", "all", "sleep",
                                              "60000"], "--max-restarts", "3")
    job.end(64)
    assert job.log(0).count("started") == 1


def test_too_few_slots(bench):
    """Promise 34."""
    for name, options, environment, said in (
            ("slots", ["--ranks", "5"], {}, "--ranks 5: the hosts take 4 ranks (h1 2, h2 2)"),
            ("mesh", [], {"FAKE_WORLD_MULTIPLE": "3"}, "4 ranks are no multiple of 3"),
            ("least", ["--min-ranks", "6"], {}, "--min-ranks 6: the job starts with 4 ranks")):
        before = [bench.hosts.num_logins(host) for host in ("h1", "h2")]
        job = bench.job(name, "h1:2,h2:2", RANKS, *options, environment=environment)
        job.end(64)
        assert said in job.console() and not job.run.exists(), job.console()
    job = bench.job("too-few-left", "h1:2,h2:1,h3:1", ["daemon", *RANKS], "--max-restarts", "1", environment={"FAKE_WORLD_MULTIPLE": "4"})
    os.kill(job.ready(0, 1, 2, 3).agent(3), signal.SIGKILL)
    job.end(75)
    assert "no restart: 3 slots left on 2 hosts" in job.console(), job.console()
    say(34, "more ranks than slots, a mesh that does not fit, too many --min-ranks: 64 before anything starts; no fit on what is left: 75")


def test_spare_hosts(bench):
    """A lost host is replaced by a spare; without one the world shrinks to what fits."""
    where = ["on", "0", "in", "0", "sleep", "60000", "on", "1", "in", "0", "sleep", "60000", "on", "2", "in", "0", "sleep", "60000",
             "on", "3", "in", "0", "sleep", "60000"]
    script = ["daemon", "env", "WORLD_SIZE", "print", "ready", *where, "all", "until"]
    go_on = bench.hosts.directory / "spare-may-end"
    job = bench.job("spare", "h1:2,h2:2,h3:2", [*script, str(go_on)], "--ranks", "4", "--max-restarts", "1").ready(0, 1, 2, 3)
    assert not job.processes("h3")
    os.kill(job.agent(0), signal.SIGKILL)
    eventually(lambda: all(job.log(rank).count("WORLD_SIZE=4") == 2 for rank in range(4)), 15, job.console)
    assert not job.processes("h1") and len(job.processes("h2")) == 4 and len(job.processes("h3")) == 4
    go_on.touch()
    job.end(0)
    assert "without h1" in job.console(), job.console()
    job = bench.job("shrinks", "h1:2,h2:1", [*script, str(go_on)], "--max-restarts", "1", environment={"FAKE_WORLD_MULTIPLE": "1"})
    os.kill(job.ready(0, 1, 2).agent(2), signal.SIGKILL)
    job.end(0)
    assert "WORLD_SIZE=2" in job.log(0) and "WORLD_SIZE=2" in job.log(1) and "WORLD_SIZE=2" not in job.log(2)
    job = bench.job("least-ranks", "h1:2,h2:1", [*script, str(go_on)], "--max-restarts", "1", "--min-ranks", "3")
    os.kill(job.ready(0, 1, 2).agent(2), signal.SIGKILL)
    job.end(75)
    assert "at least 3 (--min-ranks)" in job.console(), job.console()
    say("spare", "after the loss of h1 ranks run on h2 and h3; without a spare on what is left, at least --min-ranks")


def test_odd_starts(bench):
    """Promise 33."""
    directory = bench.hosts.directory

    def many_files():
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
        for _ in range(1000):
            os.dup(1)

    def few_files():
        many_files()
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))

    read_only = directory / "read-only"
    read_only.mkdir()
    mount = (f"mount --bind {read_only} {read_only} && mount -o remount,ro,bind {read_only} && cd {read_only} && "
             "! touch x 2>/dev/null && exec")
    variants = {
        "closed-stdin": {"preexec_fn": lambda: os.close(0)},
        "all-closed": {"before": ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]},
        "no-home": {"before": ["env", "-u", "HOME"]},
        "bare": {"before": ["env", "-i", f"PATH={os.environ['PATH']}"]},
        "read-only-cwd": {"before": ["unshare", "-m", "sh", "-c", f'{mount} "$@"', "sh"]},
        "many-files": {"preexec_fn": many_files, "close_fds": False},
        "few-free-files": {"preexec_fn": few_files, "close_fds": False},
        "pid-1": {"before": ["unshare", "-pf", "--mount-proc", "--kill-child"]},
    }
    for name, how in variants.items():
        for where in ("h1:1,h2:1", None):
            options = [] if where else ["--ranks", "2"]
            kind = "hosts" if where else "local"
            job = bench.job(f"{name}-{kind}", where, ["daemon", "read-stdin", "meet", "print", "hello"], *options, **how)
            job.end(0)
            assert all(job.log(rank) == "stdin gives 0\nhello\n" for rank in range(2)), job.console() + job.log(0)
            if name not in ("all-closed", "pid-1"):
                continue
            job = bench.job(f"{name}-{kind}-fails", where, ["daemon", "on", "1", "exit", "3", "all", "sleep", "60000"], *options, **how)
            job.end(3)
    say(33, f"{', '.join(variants)}: all work as always, locally and over hosts")


ALONE = [test_a_killed_rank_ends_all, test_resumes_after_a_killed_rank, test_a_stopped_terminal_stalls_nobody]


def main():
    chosen = [test for name, test in globals().items() if name.startswith("test_") and (len(sys.argv) < 2 or name in sys.argv[1:])]
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
                if test in ALONE:
                    one(test)
            # The longest waits first. Hosts that lose their cables are nobody else's.
            rest = [test for test in chosen if test not in ALONE]
            with concurrent.futures.ThreadPoolExecutor(3) as pool:
                list(pool.map(one, rest))
            if not failed:
                bench.nothing_left()
        finally:
            bench.end()
        assert not failed, failed


if __name__ == "__main__":
    main()
