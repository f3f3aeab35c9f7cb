"""What the launcher promises when ranks, agents, the launcher itself or hosts die: who is blamed, what is left, what starts again.
Without arguments all tests; with names only those."""
import concurrent.futures
import os
import signal
import time

from jobs import RANKS, all_gone, eventually, main, say


LEASE = 10  # seconds; launcher/job/controller.h
SPARE = [f"h{i}" for i in range(4, 8)]  # hosts for faults; h1-h3 stay whole


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
    assert job.failure()["advice"] == "start it again; no checkpoint was saved yet", job.failure()
    assert "h2: killed " in job.console() and "that the lost agent had left" in job.console(), job.console()
    assert everything < 3, everything
    say(4, f"kill -9 of an agent: its ranks gone after {direct:.2f} s (limit 1 s), daemonised grandchildren on that host after "
           f"{everything:.2f} s (limit 3 s)")
    again = bench.job("agent-restart", "h1:1,h2:1", ["daemon", "print", "ready", "on", "0", "in", "0", "sleep", "60000", "on", "1",
                                                     "sleep", "60000"], "--max-restarts", "1").ready(0, 1)
    os.kill(again.agent(1), signal.SIGKILL)
    again.end(0)
    assert "restart 1 of 1 from the beginning, without h2" in again.console(), again.console()
    assert again.failure("failure.1.json")["advice"] == "", again.failure("failure.1.json")


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
    """Promise 7, and promise 5 for a host that gets nothing: cable cut, black hole, loss of power."""
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
    # That of the crashed host is known half a second after it.
    for job in (kept[cut], kept[dropped], failing):
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
    job = bench.job("cancelled", "h1:1,h2:1", ["checkpoint", "7", "finish-on-term", *RANKS]).ready(0, 1)
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
    job = bench.job("hopeless", "h1:1,h2:1", ["print", "started", "on", "1", "enter", "3", "step", "fail", "64", "bad recipe", "exit", "64",
                                              "all", "sleep", "60000"], "--max-restarts", "3")
    job.end(64)
    assert job.log(0).count("started") == 1


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
    twice = ["print", "started", "on", "1", "in", "0", "signal", "11", "on", "1", "in", "1", "signal", "11", "on", "0", "in", "0", "sleep", "60000",
             "on", "0", "in", "1", "sleep", "60000"]
    job = bench.job("fails-again", "h1:1,h2:1,h3:1", [*twice, "all", "exit", "0"], "--ranks", "2", "--max-restarts", "5")
    job.end(0)
    assert "h2 failed twice in a row: it is left out" in job.console() and "with the spare h3" in job.console(), job.console()
    assert job.log(1).count("started") == 3, job.log(1)
    job = bench.job("fails-again-no-spare", "h1:1,h2:1", [*twice, "all", "exit", "0"], "--max-restarts", "5")
    job.end(0)
    assert "left out" not in job.console(), job.console()
    # Named for wrong weights, further each time: once it starts again there, twice a spare takes the place.
    wrong = ["fail", "93", "wrong replica: rank 1 on h2 holds other weights", "exit", "93"]
    named = ["print", "started", "on", "1", "in", "0", "enter", "100", "step", *wrong, "on", "1", "in", "1", "enter", "200", "step", *wrong,
             "on", "0", "in", "0", "sleep", "60000", "on", "0", "in", "1", "sleep", "60000"]
    job = bench.job("named-twice", "h1:1,h2:1,h3:1", [*named, "all", "exit", "0"], "--ranks", "2", "--max-restarts", "5")
    job.end(0)
    assert "h2 held wrong weights twice: it is left out" in job.console() and "with the spare h3" in job.console(), job.console()
    assert job.log(1).count("started") == 3 and job.failure("failure.2.json")["root"]["kind"] == "replica", job.log(1)
    job = bench.job("named-twice-no-spare", "h1:1,h2:1", [*named, "all", "exit", "0"], "--max-restarts", "5")
    job.end(93)
    assert job.log(1).count("started") == 2 and "h2 held wrong weights in two starts, and there is no spare" in job.console(), job.console()
    job = bench.job("named-once", "h1:1,h2:1", [*named, "all", "exit", "0"])
    job.end(93)
    assert job.log(1).count("started") == 1 and job.failure()["root"]["host"] == "h2", job.console()
    say("wrong weights", "a host that is named twice gives way to a spare; without one the job ends with 93")
    say("spare", "after the loss of h1 ranks run on h2 and h3; without a spare on what is left, at least --min-ranks")


if __name__ == "__main__":
    main([test_the_cause_is_blamed, test_a_killed_agent_leaves_nothing, test_a_killed_controller_leaves_nothing,
          test_lost_hosts, test_jobs_leave_each_other_alone, test_no_progress_ends_a_job, test_spare_hosts],
         alone=[test_a_killed_rank_ends_all, test_resumes_after_a_killed_rank])
