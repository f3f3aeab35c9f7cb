"""`dstrain launch` started once on each host by something else than us (launcher/transport/meeting.h): what each scheduler's variables lead to,
who is missing, wrong secrets, a process that comes back. Four hosts, each a network and a process space of its own. Without arguments all
tests; with names only those."""
import contextlib
import json
import os
import shutil
import signal
import time

from hosts import Hosts, run_tests, start_command

SECRET = "0f" * 32
KUBERNETES = "Kubernetes"
# What each program sets for the process of index i of n, beside the secret; h1 has index 0.
PROGRAMS = {
    KUBERNETES: lambda i, n: {"JOB_COMPLETION_INDEX": i, "DSTRAIN_HOSTS": n, "DSTRAIN_CONTROLLER": "h1"},
    "Kubeflow Trainer": lambda i, n: {"PET_NODE_RANK": i, "PET_NNODES": n, "PET_NPROC_PER_NODE": 2, "PET_MASTER_ADDR": "h1",
                                      "PET_MASTER_PORT": 29400, "JOB_COMPLETION_INDEX": i},
    "LeaderWorkerSet": lambda i, n: {"LWS_WORKER_INDEX": i, "LWS_GROUP_SIZE": n, "LWS_LEADER_ADDRESS": "h1"},
    "pbsdsh": lambda i, n: {"PBS_NODENUM": i, "DSTRAIN_HOSTS": n, "DSTRAIN_CONTROLLER": "10.213.7.1:7777"},
    "DSTRAIN_INDEX": lambda i, n: {"DSTRAIN_INDEX": i, "DSTRAIN_HOSTS": n, "DSTRAIN_CONTROLLER": "h1:7778"},
}


class Cluster:
    def __init__(self, hosts):
        self.hosts = hosts
        self.programs = hosts.directory / "bin"
        self.programs.mkdir()
        for name in ("FAKE_DSTRAIN", "FAKE_RANK"):
            shutil.copy(os.environ[name], self.programs)

    def start(self, index, output, script, *options, program=KUBERNETES, count=4, host=None, secret=SECRET, **more):
        """The process of one index, as the program starts it on its host."""
        variables = PROGRAMS[program](index, count) | ({"DSTRAIN_JOIN_SECRET": secret} if secret else {}) | more
        host = host or f"h{index + 1}"
        launch = [self.programs / "fake_dstrain", "launch", "--output", self.hosts.directory / "runs", "--run-name", output, *options,
                  "--", self.programs / "fake_rank", *script.split()]
        return start_command(["nsenter", "-t", self.hosts._first(host), "-n", "-u", "-p", "-m", "--", *launch], cwd=self.hosts.directory,
                             env=os.environ | {name: str(value) for name, value in variables.items()} | {"JOIN_TEST": output})

    def start_all(self, output, script, *options, indices=range(4), **how):
        return [self.start(i, output, script, *options, **how) for i in indices]

    def run(self, output):
        return self.hosts.directory / "runs" / output

    def logs(self, output):
        return sorted(path.read_text() for path in self.run(output).glob("ranks/rank*.log"))

    def kill(self, host, output):
        """Every process of the job there, at once, as when a pod is taken away."""
        for pid in self.hosts.processes(f"JOIN_TEST={output}", host):
            with contextlib.suppress(ProcessLookupError):  # A rank ends with its agent, which may be killed first.
                os.kill(pid, signal.SIGKILL)

    def ready(self, output, count, limit=30):
        begin = time.monotonic()
        while sum("ready" in log for log in self.logs(output)) < count:
            assert time.monotonic() - begin < limit, f"{output}: {self.logs(output)}"
            time.sleep(0.05)


def ends(processes, codes, limit=40):
    """Their output, each with its exit code."""
    texts = [process.communicate(timeout=limit)[0] for process in processes]
    found = [process.returncode for process in processes]
    assert found == codes, f"{found}, not {codes}: {texts}"
    return texts


def test_every_program(cluster):
    """Index 0 leads; the others serve it, and end with 0 when it has ended. The ranks get no secret."""
    for program in PROGRAMS:
        output = f"by-{program.replace(' ', '-')}"
        begin = time.monotonic()
        jobs = cluster.start_all(output, "env DSTRAIN_JOIN_SECRET env DSTRAIN_INDEX print here", "--ranks", "8", program=program)
        texts = ends(jobs, [0] * 4)
        assert "8 ranks on h1, h2, h3, h4" in texts[0], texts
        logs = cluster.logs(output)
        assert len(logs) == 8 and all("here" in log and SECRET not in log for log in logs), logs
        print(f"  {program}: {time.monotonic() - begin:.1f} s")
    assert SECRET not in "".join(path.read_text(errors="replace") for path in cluster.hosts.directory.glob("runs/**/*") if path.is_file())


def test_ipv6(cluster):
    """Index 0 listens over IPv6, too. Both processes are on one host, where ::1 is."""
    for address in ("[::1]:7779", "::1"):
        output = f"ipv6-{len(address)}"
        jobs = [cluster.start(i, output, "print here", "--ranks", "2", program="DSTRAIN_INDEX", count=2, host="h1", DSTRAIN_CONTROLLER=address)
                for i in range(2)]
        texts = ends(jobs, [0] * 2)
        assert "2 ranks on h1, h1#1" in texts[0] and len(cluster.logs(output)) == 2, texts
    texts = ends([cluster.start(1, "nobody6", "exit 0", host="h1", DSTRAIN_JOIN_PATIENCE=2, DSTRAIN_CONTROLLER="[::1]:9")], [69])
    assert "[::1]:9 Connection refused" in texts[0], texts
    texts = ends([cluster.start(i, "other-secret6", "exit 0", host="h1", count=2, program="DSTRAIN_INDEX", secret=f"{i}" * 32, DSTRAIN_JOIN_PATIENCE=4,
                                DSTRAIN_CONTROLLER="[::1]:7780") for i in range(2)], [69, 64])
    assert "who came from ::1 did not prove the secret" in texts[0] and "[::1]:7780 has another secret" in texts[1], texts


def test_failures(cluster):
    """The job's exit code is that of index 0; the others, spares too, end with 0, so that nothing starts them again. Where index 0 is killed
    they say 75: the start is worth another try."""
    texts = ends(cluster.start_all("fails", "on 1 exit 3 all sleep 60000", "--ranks", "2"), [3, 0, 0, 0])
    assert "rank 1" in texts[0], texts
    jobs = cluster.start_all("killed", "print ready sleep 60000", "--ranks", "8")
    cluster.ready("killed", 8)
    cluster.kill("h1", "killed")
    texts = ends(jobs, [-signal.SIGKILL, 75, 75, 75])
    assert "index 0 was lost while ranks ran here" in texts[1], texts
    cluster.hosts.wait_gone("JOIN_TEST=killed", 2)


def test_secrets(cluster):
    """No secret, another one, and one that others may read are refused in words; a process without the secret is missing."""
    texts = ends(cluster.start_all("no-secret", "exit 0", secret=None), [64] * 4)
    assert all("neither DSTRAIN_JOIN_SECRET nor DSTRAIN_JOIN_SECRET_FILE is set" in text for text in texts), texts
    jobs = [cluster.start(i, "wrong-secret", "exit 0", secret=SECRET if i != 2 else "another secret of the same job", DSTRAIN_JOIN_PATIENCE=4)
            for i in range(4)]
    texts = ends(jobs, [69, 0, 64, 0])
    assert "10.213.7.1:29470 has another secret than this process" in texts[2], texts
    assert "1 of 4 processes of Kubernetes did not report within 4 s: index 2; who came from 10.213.7.3 did not prove the secret" in texts[0], texts
    secret = cluster.hosts.directory / "secret"
    secret.write_text(SECRET + "\n")
    secret.chmod(0o644)
    texts = ends(cluster.start_all("open-secret", "exit 0", secret=None, DSTRAIN_JOIN_SECRET_FILE=secret), [64] * 4)
    assert "others may read" in texts[0] and "(mode 644)" in texts[0], texts
    secret.chmod(0o600)
    ends(cluster.start_all("by-file", "exit 0", secret=None, DSTRAIN_JOIN_SECRET_FILE=secret), [0] * 4)


def test_missing(cluster):
    """Who is missing is said while they are waited for, and at the end of the patience; a late one is taken."""
    jobs = cluster.start_all("missing", "exit 0", indices=[0, 1, 2], DSTRAIN_JOIN_PATIENCE=7)
    texts = ends(jobs, [69, 0, 0])
    assert "waiting for processes of Kubernetes: index 3 (up to 7 s)" in texts[0], texts
    assert "1 of 4 processes of Kubernetes did not report within 7 s: index 3\n" in texts[0], texts
    # Index 0 comes last, and its name later than its processes.
    jobs = cluster.start_all("late", "print here", "--ranks", "4", indices=[1, 2, 3])
    time.sleep(3)
    ends([cluster.start(0, "late", "print here", "--ranks", "4"), *jobs], [0] * 4)
    texts = ends([cluster.start(1, "nobody", "exit 0", DSTRAIN_JOIN_PATIENCE=2)], [69])
    assert "process 1 of 4 by Kubernetes has not found index 0 within 2 s" in texts[0], texts
    texts = ends([cluster.start(1, "no-name", "exit 0", DSTRAIN_JOIN_PATIENCE=2, DSTRAIN_CONTROLLER="nowhere.invalid")], [69])
    assert "'nowhere.invalid' stands for no address" in texts[0], texts


def test_same_index(cluster):
    """Two processes of one index are told apart and refused, and so is an index beyond the count."""
    jobs = [cluster.start(i, "twice", "exit 0", host=f"h{host}") for i, host in ((0, 1), (1, 2), (1, 3))]
    texts = ends(jobs, [64, 0, 0])
    assert "two processes say that they are index 1, on h" in texts[0], texts
    jobs = [cluster.start(0, "beyond", "exit 0", count=2), cluster.start(3, "beyond", "exit 0", count=4)]
    texts = ends(jobs, [64, 0])
    assert "a process on h4 says that it is index 3, and index 0 waits for 2 in all" in texts[0], texts


def test_comes_back(cluster):
    """A host that is taken away comes back with its index: waited for where the job needs it, else a host of the next start."""
    script = "in 0 print ready sleep 60000 all in 1 print again"
    options = ["--ranks", "8", "--max-restarts", "2"]
    jobs = cluster.start_all("needed", script, *options, "--min-ranks", "8")
    cluster.ready("needed", 8)
    cluster.kill("h3", "needed")
    time.sleep(3)  # a new pod takes its time
    jobs[2].wait(5)
    jobs[2] = cluster.start(2, "needed", script, *options, "--min-ranks", "8")
    begin = time.monotonic()
    texts = ends(jobs, [0] * 4)
    assert "the job needs h3 back: waiting up to 300 s for Kubernetes to start it anew" in texts[0], texts
    assert "h3 was lost and is there again" in texts[0] and "8 ranks on h1, h2, h3, h4 (CPU), continuing" in texts[0], texts
    print(f"  needed: ended {time.monotonic() - begin:.1f} s after it came back")

    # The next start goes on without it; at the one after it is there.
    script = "in 0 print ready sleep 60000 all in 1 until GO all in 1 exit 75 all in 2 print again".replace("GO", str(cluster.hosts.directory / "go"))
    jobs = cluster.start_all("spare", script, *options)
    cluster.ready("spare", 8)
    cluster.kill("h3", "spare")
    begin = time.monotonic()
    events = cluster.run("spare") / "events.jsonl"
    while [json.loads(line)["ranks"] for line in events.read_text().splitlines() if '"launched"' in line] != [8, 6]:
        assert time.monotonic() - begin < 20, events.read_text()
        time.sleep(0.1)
    jobs[2].wait(5)
    jobs[2] = cluster.start(2, "spare", script, *options)
    time.sleep(1)
    (cluster.hosts.directory / "go").touch()
    texts = ends(jobs, [0] * 4)
    assert "6 ranks on h1, h2, h4 (CPU), continuing" in texts[0] and "h3 was lost and is there again" in texts[0], texts
    assert "8 ranks on h1, h2, h3, h4 (CPU), continuing" in texts[0], texts


if __name__ == "__main__":
    with Hosts(4) as all_hosts:
        run_tests(globals(), Cluster(all_hosts))
