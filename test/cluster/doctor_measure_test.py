"""`dstrain doctor --measure` over hosts: rates and latency between them are kept, and plans of several hosts say so and use them."""
import json
import os
import pathlib
import subprocess
import time

from hosts import Hosts

DSTRAIN = pathlib.Path(os.environ["DSTRAIN"])


def test_rates_between_hosts_are_kept_and_planned_with():
    with Hosts(2) as hosts:
        config = hosts.directory / "config"
        environment = os.environ | {"XDG_CONFIG_HOME": str(config), "OMP_NUM_THREADS": "1"}

        def run(*words):
            return subprocess.run([DSTRAIN, *map(str, words)], env=environment, cwd=hosts.directory, capture_output=True, text=True,
                                  timeout=150, stdin=subprocess.DEVNULL)

        where = ["doctor", "--hosts", "h1:2,h2:2", "--ssh-config", hosts.ssh_config, "--measure"]
        done = run(*where, "--output", hosts.directory / "runs")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "2 of 2 hosts can be used" in done.stdout and "all 4 ranks of 2 hosts: " in done.stdout, done.stdout
        print(done.stdout[done.stdout.index("products "):])
        assert list((hosts.directory / "runs").iterdir()) == [], "a measurement leaves no run"
        [machine] = json.loads((config / "dstrain" / "machine.json").read_text())["machines"]
        assert machine["device"] == "CPU" and machine["network_hosts"] == 2 and machine["network_ranks"] == 4, machine

        recipe = ["plan", "quickstart", "--ranks", 8, "--per-node", 2, "--set", "parallel.backend=gloo", "--set", "parallel.zero.stage=1"]
        plan = run(*recipe)
        assert f"measured on {machine['network_measured']} over 2 hosts with 4 ranks" in plan.stdout, plan.stdout
        network = json.loads(run(*recipe, "--json").stdout)["network"]
        assert network["bytes_per_s"] == machine["network_bytes_per_s"] and network["hosts"] == 4, network
        assert 0 <= network["hop_latency_s"] <= machine["network_latency_s"] / 3, network

        done = run(*where, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        whole = json.loads(done.stdout)
        assert [host["host"] for host in whole["hosts"]] == ["h1", "h2"], whole
        measured = whole["measured"]
        assert measured["file"] == str(config / "dstrain" / "machine.json") and measured["network"]["ranks"] == 4, measured
        assert [len(host["product_tflops"]) for host in measured["hosts"]] == [2, 2], measured
        assert "all 4 ranks of 2 hosts: " in done.stderr, done.stderr

        one = run("doctor", "--hosts", "h1:2", "--ssh-config", hosts.ssh_config, "--measure")
        assert one.returncode == 64 and "needs two of them at least" in one.stderr, one.stdout + one.stderr


if __name__ == "__main__":
    start = time.monotonic()
    test_rates_between_hosts_are_kept_and_planned_with()
    print(f"doctor_measure: {time.monotonic() - start:.1f} s")
