"""`launch --preflight` measures hosts before it trains: one whose ranks are stopped most of the time is named and gives way to a spare."""
import json
import os
import signal
import subprocess
import threading
import time

from hosts import Hosts
from training import DSTRAIN, ROOT, losses, only_run, settings


class SlowHost:
    """Ranks of a host run a tenth of the time, while they measure."""

    def __init__(self, hosts, host):
        self.hosts, self.host, self.over, self.stops = hosts, host, False, 0
        self.thread = threading.Thread(target=self.work)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over = True
        self.thread.join()

    def measuring(self):
        found = []
        for pid in self.hosts.pids(self.host):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    if b"--measure" in file.read():
                        found.append(int(pid))
            except OSError:
                pass
        return found

    def send(self, pids, number):
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def work(self):
        while not self.over:
            pids = self.measuring()
            self.send(pids, signal.SIGSTOP)
            self.stops += len(pids)
            time.sleep(0.09)
            self.send(pids, signal.SIGCONT)
            time.sleep(0.01)


def launch(hosts, output, *options):
    done = subprocess.run([DSTRAIN, "launch", "recipes/quickstart.yaml", "--ssh-config", hosts.ssh_config, "--hosts", "h1:1,h2:1,h3:1,h4:1",
                           "--env", "OMP_NUM_THREADS=1", "--preflight", *settings(output, 5), *map(str, options)],
                          cwd=ROOT, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def test_slow_host():
    with Hosts(4) as hosts:
        output = hosts.directory / "runs" / "slow"
        with SlowHost(hosts, "h2") as slow:
            text = launch(hosts, output, "--ranks", "2")
        assert slow.stops > 3, "the ranks of h2 were never stopped"
        assert "h2 is slow: products on its rank 0" in text and "it is left out, as there is a spare in its place" in text, text
        run = only_run(output)
        rates = json.loads((run / "preflight.json").read_text())["hosts"]
        assert [host["first_rank"] for host in rates] == [0, 1, 2, 3], rates
        products = [host["product_tflops"][0] for host in rates]
        assert products[1] < 0.6 * sorted(products)[2], products
        assert all(host["host_gb_s"] is None and host["pair_gb_s"] > 0 for host in rates), rates
        line = next(line for line in text.splitlines() if line.startswith("2 ranks on "))
        assert "h2" not in line, line
        assert sorted(losses(run)) == list(range(1, 6)), "it trained"
        print([line for line in text.splitlines() if "preflight" in line or "is slow" in line])


if __name__ == "__main__":
    start = time.monotonic()
    test_slow_host()
    print(f"preflight: {time.monotonic() - start:.1f} s")
