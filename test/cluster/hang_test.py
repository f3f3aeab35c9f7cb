"""Hangs over hosts (promise 6) and ranks that the kernel kills for memory (29)."""
import os
import pathlib
import signal
import time

from jobs import main, say

LIMIT = 2  # --hang-timeout, seconds
FOUND = LIMIT + 2
MEMORY = pathlib.Path("/sys/fs/cgroup/memory")


def hang(bench, name, script, odd, what, before=None):
    """Runs ranks of which `odd`, on h2, hangs; {failure.json, its group of ranks} and seconds from the cause to the end."""
    for attempt in range(3):  # the machine may be busy with something else
        job = bench.job(f"{name}-{attempt}", "h1:2,h2:2,h3:1", script, "--hang-timeout", str(LIMIT)).ready(*range(5))
        start = time.monotonic()
        if before:
            before(job.rank(odd))
        job.end(75)
        seconds = time.monotonic() - start
        failure = job.failure()
        root = failure["root"]
        assert (root["kind"], root["rank"], root["host"], root["step"]) == ("hang", odd, "h2", 7), (root, job.console())
        group = next(group for group in failure["ranks"] if odd in group["ranks"])
        assert group["ranks"] == [odd], failure["ranks"]
        if seconds <= FOUND:
            break
    say(6, f"{what}: ended {seconds:.1f} s later with rank, host and stack (limit {FOUND} s)")
    assert seconds <= FOUND, seconds
    return failure, str(group["stack"]), group


def all_but(odd, entered, instead):
    """Words after which all ranks have entered `entered` collectives, but rank `odd` one less."""
    script = ["section", "step", "enter", "7", "backward(layer.3)", "collective", str(entered - 1), "all_gather", "leave",
              "print", "ready", "on", str(odd), *instead]
    for rank in range(5):
        if rank != odd:
            script += ["on", str(rank), "enter", "7", "norm", "collective", str(entered), "all_reduce", "sleep", "60000"]
    return script


def test_stopped(bench):
    script = ["section", "step", "enter", "7", "forward", "collective", "4", "all_gather", "leave", "print", "ready", "on", "0",
              "enter", "7", "norm", "collective", "5", "all_reduce", "all", "sleep", "60000"]
    _, stack, group = hang(bench, "stopped", script, 3, "a rank stopped by SIGSTOP", lambda pid: os.kill(pid, signal.SIGSTOP))
    assert group["states"][0]["process_state"] == "T" and "main" in stack, group


def test_endless_loop(bench):
    failure, stack, _ = hang(bench, "loop", all_but(2, 11, ["loop-forever"]), 2, "an endless loop")
    assert "loop_forever" in stack, stack
    assert failure["root"]["collective"] == "collective 10, all_gather(layer.3), 5 ranks", failure["root"]
    assert failure["root"]["action"] == "backward(layer.3)", failure["root"]


def test_skipped_collective(bench):
    script = all_but(3, 11, ["enter", "7", "gather(layer.0)", "collective", "11", "all_gather", "sleep", "60000"])
    failure, _, _ = hang(bench, "skipped", script, 3, "a rank that skips one all-reduce and waits in the next collective")
    assert failure["root"]["collective"] == "collective 11, all_gather(layer.0), 5 ranks", failure["root"]
    assert "ranks 0-2, 4 wait in collective 11, all_reduce(norm)" in failure["summary"], failure["summary"]


def test_fifo(bench):
    fifo = bench.hosts.directory / "nobody-writes"
    os.mkfifo(fifo)
    _, stack, _ = hang(bench, "fifo", all_but(2, 4, ["enter", "7", "load", "fifo", str(fifo)]), 2, "a rank that reads a FIFO")
    assert f"openat({fifo})" in stack and "read_fifo" in stack, stack


def test_out_of_memory(bench):
    """A limit of 128 MiB for all processes of h2, and a rank there that wants more."""
    if not (MEMORY / "memory.limit_in_bytes").exists():
        print("  skipped: no memory control group of version 1 here", flush=True)
        return
    limit = 128 << 20
    group = MEMORY / "dstrain-hang-test"
    group.mkdir()
    sshd = bench.hosts._first("h2")
    groups = pathlib.Path(f"/proc/{sshd}/cgroup").read_text().splitlines()
    home = next(line.split(":", 2)[2] for line in groups if ":memory:" in line)
    try:
        (group / "memory.limit_in_bytes").write_text(str(limit))
        (group / "cgroup.procs").write_text(str(sshd))
        for mounted in (False, True):
            if mounted:  # a host of its own shows its control groups, a network namespace does not
                bench.hosts.run("h2", "sh", "-c", "mount -t tmpfs none /sys/fs/cgroup && mkdir /sys/fs/cgroup/memory && "
                                                  "mount -t cgroup -o memory none /sys/fs/cgroup/memory", check=True)
            job = bench.job(f"oom-{mounted}", "h1:2,h2:2",
                            ["print", "ready", "enter", "7", "forward", "on", "2", "allocate", "512", "all", "sleep", "60000"])
            seconds = job.end(128 + signal.SIGKILL)
            root = job.failure()["root"]
            found = (root["kind"], root["rank"], root["host"], root["signal"])
            assert found == ("oom", 2, "h2", signal.SIGKILL), (root, job.console())
            if mounted:
                assert job.failure()["memory_bytes"]["host_limit"] == limit, job.failure()
                assert "the processes on h2 share 128.00 MiB" in job.console(), job.console()
            say(29, f"killed by the kernel for memory, group {'' if mounted else 'not '}seen: kind oom after {seconds:.1f} s")
        # kill -9 is no lack of memory.
        job = bench.job("no-oom", "h1:2,h2:2", ["print", "ready", "sleep", "60000"]).ready(*range(4))
        os.kill(job.rank(2), signal.SIGKILL)
        job.end(128 + signal.SIGKILL)
        assert job.failure()["root"]["kind"] == "signal", job.failure()
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            (MEMORY / home.lstrip("/") / "cgroup.procs").write_text(pid)
        group.rmdir()


if __name__ == "__main__":
    main([], alone=[test_stopped, test_endless_loop, test_skipped_collective, test_fifo, test_out_of_memory])
