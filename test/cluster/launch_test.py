"""What the launcher promises of a job over hosts whose processes live on: its start, its output, its end. Without arguments all tests;
with names only those."""
import concurrent.futures
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

from jobs import RANKS, command_lines, eventually, main, say



def test_a_stopped_terminal_stalls_nobody(bench):
    """Promise 30."""
    lines = 100_000
    reading, writing = os.pipe()
    job = bench.job("stuck-terminal", "h1:4,h2:4", ["meet", "lines", str(lines), "print", "done"], "--tee", "all", console=writing)
    os.close(writing)
    logs = [job.run / "ranks" / f"rank{rank:04d}.log" for rank in range(8)]
    written = eventually(lambda: all("done" in job.log(rank)[-10:] for rank in range(8)), 25, lambda: [log.stat() for log in logs])
    time.sleep(max(0, 5 - written))  # nothing reads all this while
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
    assert "[rank 5] odd\\x1b[2J one\n" in folded.console(), folded.console()


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
    """Promise 8, as far as the launcher has to do with it; the clocks of the hosts are written down."""
    for number in (signal.SIGTERM, signal.SIGUSR1):
        job = bench.job(f"asked-{number}", "h1:1,h2:2", ["checkpoint", "7", "finish-on-term", *RANKS]).ready(0, 1, 2)
        job.signal(number)
        start = time.monotonic()
        job.end(75)
        assert "stopped as asked; go on with --resume" in job.console() and not (job.run / "failure.json").exists()
        clocks = [json.loads(line) for line in (job.run / "clocks.jsonl").read_text().splitlines()]
        assert {clock["host"] for clock in clocks} == {"h1", "h2"}, clocks
        for clock in clocks:  # one kernel has one clock
            assert abs(clock["offset_ns"]) <= clock["bound_ns"] < 2e9, clock
            assert abs(clock["t_ns"] - time.time_ns()) < 60e9, clock
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
    assert "nothing was started" in console and not job.run.exists(), console
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
        assert "h1: " not in job.console() and not job.run.exists(), job.console()
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


if __name__ == "__main__":
    main([test_exit_codes, test_scheduler_signals, test_bad_hosts, test_missing_folders, test_jobs_at_once,
          test_values_arrive_byte_for_byte, test_secrets_stay_secret, test_too_few_slots, test_odd_starts],
         alone=[test_a_stopped_terminal_stalls_nobody])
