"""Fake hosts for tests (see test-hosts.sh). A test with hosts goes on in namespaces of its own, so that tests may run side by side, each
with its own DSTEST_DIR; do not wrap a test in flock, this file locks that directory.

    with Hosts(4) as hosts:                       # exit 77 where they cannot be had
        subprocess.run([DSTRAIN, "launch", "--hosts", "h1:2,h2:2", "--ssh-config", hosts.ssh_config, ...])
        hosts.cut("h2"); hosts.processes("DSTRAIN_RUN_DIR=/x", "h2"); hosts.run("h1", "hostname"); hosts.slurm_up()
"""
import fcntl
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

SCRIPT = pathlib.Path(__file__).resolve().with_name("test-hosts.sh")
os.environ["PATH"] += ":/usr/sbin:/sbin"

# Networks, names of network namespaces, processes and shared memory that no other test sees.
OWN_NAMESPACES = ["unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c",
                  "mkdir -p /run/netns /etc/netns && for own in /run/netns /etc/netns /dev/shm; do mount -t tmpfs none $own || exit; done &&"
                  ' ip link set lo up && "$@"; exit $?', "sh"]  # a shell that stays: it takes the end of orphans


def skip(reason):
    print(f"skipped: {reason}", flush=True)
    sys.exit(77)


def require(*programs):
    missing = [p for p in programs if not shutil.which(p)]
    if missing:
        skip(f"not installed: {' '.join(missing)} (scripts/setup --tests)")


def live(pid):
    """Whether a process is there and no zombie."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def start_command(words, **options):
    """A command whose output, errors included, is text to read."""
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} | options
    return subprocess.Popen([*map(str, words)], **options)


def run_command(words, code=0, limit=60, **options):
    """Output of a command that must end with `code` within `limit` seconds."""
    process = start_command(words, **options)
    try:
        text, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"{words}: still running after {limit} s: {process.communicate()[0]}") from None
    assert process.returncode == code, f"exit {process.returncode}, not {code}: {text}"
    return text


def enter_own_namespaces():
    """Starts this program anew in them; it comes to the same place."""
    probe = subprocess.run("unshare --net --uts --pid --fork --mount --mount-proc sh -c"
                           " 'ip link add dsprobe type bridge && ip link add v0 type veth peer name v1'",
                           shell=True, capture_output=True, text=True)
    if probe.returncode != 0:
        skip(f"no network namespaces here: {(probe.stdout + probe.stderr).strip()}")
    os.execvpe(OWN_NAMESPACES[0], [*OWN_NAMESPACES, sys.executable, *sys.orig_argv[1:]],
               os.environ | {"DSTEST_OWN_NAMESPACES": "1"})


class Hosts:
    """h1..hN from `with` to its end, whatever ends it. `directory` is seen by all hosts at the same path; /tmp is not."""

    def __init__(self, count, gpus=4, cpus=4, max_startups=None):
        self.names = [f"h{i + 1}" for i in range(count)]
        self.directory = pathlib.Path(os.environ.get("DSTEST_DIR", "/var/tmp/test-hosts"))
        self.ssh_config = self.directory / "ssh_config"
        self.hostfile = self.directory / "hostfile"
        self.slurm_conf = self.directory / "slurm" / "slurm.conf"
        self._environment = os.environ | {"GPUS": str(gpus), "CPUS": str(cpus)}
        if max_startups:
            self._environment["MAX_STARTUPS"] = max_startups

    def __enter__(self):
        if os.geteuid() != 0:
            skip("fake hosts need root")
        require("ip", "iptables", "sshd", "ssh", "unshare", "nsenter")
        if "DSTEST_OWN_NAMESPACES" not in os.environ:
            enter_own_namespaces()
        self._lock = open(f"{self.directory}.lock", "a")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._script("down")  # what a killed test left
        self._guard()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            self._script("up", str(len(self.names)))
            if self.run(self.names[0], "test", "-e", self.ssh_config).returncode != 0:
                skip("entering a fake host leads to other files than its own: this is a chroot")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self._script("down")
        self._guardian.stdin.write(b"done\n")
        self._guardian.stdin.close()
        self._lock.close()

    def _guard(self):
        """Takes the hosts down when this process was killed; it keeps the lock until then."""
        self._guardian = subprocess.Popen(
            ["setsid", "-f", "sh", "-c", 'read -r line && exit 0; exec "$0" down', str(SCRIPT)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=[self._lock.fileno()])
        self._guardian.wait()

    def _script(self, *arguments):
        done = subprocess.run([SCRIPT, *arguments], env=self._environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"test-hosts.sh {' '.join(arguments)}: {done.stdout}{done.stderr}")

    def cut(self, host):
        """Pulls the cable."""
        self._script("cut", host)

    def heal(self, host):
        self._script("heal", host)

    def drop(self, host):
        """A silent black hole for what arrives at the host."""
        self._script("drop", host)

    def undrop(self, host):
        self._script("undrop", host)

    def crash(self, host):
        """Power loss: every process of the host is killed at once; it does not come back."""
        self._script("crash", host)

    def slurm_up(self):
        """A Slurm cluster of all hosts; its commands need the environment that this returns."""
        require("slurmctld", "slurmd", "srun", "munged")
        self._script("slurm-up")
        return os.environ | {"SLURM_CONF": str(self.slurm_conf)}

    def slurm_down(self):
        self._script("slurm-down")

    def pids(self, host):
        """Live processes of a host, as this machine numbers them."""
        listed = subprocess.run(["ip", "netns", "pids", f"ds-{host}"], capture_output=True, text=True)
        return [int(pid) for pid in listed.stdout.split() if live(pid)]

    def run(self, host, *command, **options):
        """Runs a command inside a host, without ssh, so that it works on a host that is cut off."""
        options = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "timeout": 60} | options
        return subprocess.run(["nsenter", "-t", str(self._first(host)), "-n", "-u", "-p", "-m", "--",
                               *map(str, command)], **options)

    def _first(self, host):
        """Process 1 of the host (its sshd)."""
        for pid in self.pids(host):
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
            if next(x for x in status.splitlines() if x.startswith("NSpid:")).split()[2:] == ["1"]:
                return pid
        raise RuntimeError(f"{host} is not running")

    def processes(self, entry, host=None):
        """{pid: command line} of live processes whose environment has `entry` (NAME=VALUE), on one host or anywhere."""
        pids = self.pids(host) if host else [int(p.name) for p in pathlib.Path("/proc").iterdir() if p.name.isdigit()]
        found = {}
        for pid in pids:
            try:
                if entry.encode() in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") and live(pid):
                    found[pid] = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            except OSError:
                continue
        return found

    def wait_gone(self, entry, limit, host=None):
        """Seconds until no process with `entry` is left; an assertion error names those that are after `limit` seconds."""
        start = time.monotonic()
        while found := self.processes(entry, host):
            assert time.monotonic() - start < limit, f"still there after {limit} s: {found}"
            time.sleep(0.05)
        return time.monotonic() - start

    def configure_sshd(self, host, *lines):
        """Puts lines before the host's sshd configuration, of which the first word on a matter counts."""
        path = self.directory / host / "sshd_config"
        path.write_text("\n".join(lines) + "\n" + path.read_text())
        log = self.directory / host / "sshd.log"
        starts = log.read_text().count("Server listening")
        os.kill(self._first(host), signal.SIGHUP)
        end = time.monotonic() + 10
        while log.read_text().count("Server listening") == starts:
            assert time.monotonic() < end, f"sshd of {host} did not start again: {log.read_text()[-500:]}"
            time.sleep(0.02)

    def num_logins(self, host):
        """How many ssh connections were let in."""
        return (self.directory / host / "sshd.log").read_text().count("Accepted publickey")


def run_tests(module, subject):
    """Calls the functions test_* of a module's names with `subject`: those that the command line names, or all."""
    tests = {name: test for name, test in module.items() if name.startswith("test_")}
    chosen = [test for name, test in tests.items() if len(sys.argv) < 2 or name in sys.argv[1:]]
    assert chosen, f"no such test: {sys.argv[1:]}"
    for test in chosen:
        start = time.monotonic()
        test(subject)
        print(f"{test.__name__}: ok, {time.monotonic() - start:.1f} s", flush=True)
