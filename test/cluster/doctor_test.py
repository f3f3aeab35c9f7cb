"""`dstrain doctor` on fake hosts: every bad host in one table by class (promise 13), clocks, limits, missing folder and library."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

from hosts import Hosts

DSTRAIN = pathlib.Path(os.environ["DSTRAIN"])


def doctor(hosts, names, *options, cwd=None, timeout=90):
    """Exit code, output and seconds."""
    start = time.monotonic()
    done = subprocess.run([DSTRAIN, "doctor", "--hosts", ",".join(f"{name}:1" for name in names), "--ssh-config", hosts.ssh_config, *options],
                          capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
                          cwd=cwd or hosts.directory)
    assert done.returncode in (0, 69), f"exit {done.returncode}: {done.stdout}{done.stderr}"
    return done.returncode, done.stdout, time.monotonic() - start


def by_host(text):
    return {entry["host"]: entry for entry in json.loads(text)["hosts"]}


def engine_loads():
    """A build without the engine, or without its LibTorch, is bad on every host; the other classes are told apart all the same."""
    done = subprocess.run([DSTRAIN, "doctor", "--json"], capture_output=True, text=True, timeout=90)
    return json.loads(done.stdout)["hosts"][0]["inspection"]["engine"]["loads"]


def test_all_bad_hosts_in_one_table():
    with Hosts(5) as hosts:
        hosts.drop("h2")
        hosts.crash("h3")
        here = hosts.directory / "h1" / "tmp" / "only-here"  # /tmp of h1; the others do not see it
        here.mkdir(parents=True)
        hosts.ssh_config.write_text(hosts.ssh_config.read_text() + f"""
Host wrong-key
  User root
  HostName 10.213.7.1
  UserKnownHostsFile {hosts.directory}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  HostKeyAlias h4
Host no-such-name
  HostName no-such-name.invalid
""")
        names = ["h1", "h2", "h3", "h4", "wrong-key", "no-such-name"]
        code, text, seconds = doctor(hosts, names)
        assert code == 69, text
        assert seconds < 5 + 2 + 8, f"{seconds:.1f} s: bad hosts must not be waited for one by one"
        state = {line.split()[0]: line.split()[1] for line in text.splitlines()[1:7]}
        assert state["h2"] == "timeout", text
        assert state["h3"] in ("refused", "timeout"), text
        assert state["wrong-key"].startswith("host"), text
        assert state["no-such-name"] == "name", text
        rows = [line.split()[0] for line in text.splitlines()[1:7]]
        assert set(rows[:4]) == {"h2", "h3", "wrong-key", "no-such-name"}, f"the bad ones come first: {rows}"
        assert text.count("\n  hint: ") >= 4, text

        found = by_host(doctor(hosts, names, "--json")[1])
        assert not found["h2"]["usable"] and found["h2"]["problem"]["class"] == "timeout", found["h2"]
        for host in ("h1", "h4"):
            seen = found[host]["inspection"]
            assert seen["host"] == host and seen["arch"] == os.uname().machine, seen
            assert abs(found[host]["clock_offset_s"]) < 0.5, "the hosts of one machine have one clock"
            assert 0 < found[host]["round_trip_s"] < 1, found[host]
            assert seen["route"]["name"] == "eth0", seen["route"]  # towards the address that ssh came from
            assert {i["name"] for i in seen["interfaces"]} >= {"lo", "eth0"}, seen["interfaces"]
        loads = engine_loads()
        assert found["h1"]["usable"] == loads and found["h4"]["usable"] == loads, found["h1"]["findings"]


def test_hosts_that_do_not_reach_each_other():
    with Hosts(4) as hosts:
        hosts.run("h2", "iptables", "-I", "INPUT", "-s", "10.213.7.3", "-p", "tcp", "--syn", "-j", "DROP", check=True)
        hosts.run("h4", "iptables", "-I", "INPUT", "-i", "eth0", "-p", "tcp", "--syn", "!", "--dport", "22", "-j", "REJECT", check=True)
        code, text, seconds = doctor(hosts, hosts.names)
        assert code == 69, text
        assert "h4: error: is not reached from any other host by TCP (refused)" in text, text
        assert "h2: error: is not reached from h3 by TCP (timeout)" in text, text
        assert text.count("by TCP") == 2, text
        print(f"4 hosts with two that are not reached: {seconds:.1f} s")
        found = by_host(doctor(hosts, hosts.names, "--json")[1])
        assert found["h3"]["unreached"] == [{"host": "h4", "class": "refused"}, {"host": "h2", "class": "timeout"}], found["h3"]
        assert found["h1"]["unreached"] == [{"host": "h4", "class": "refused"}] and found["h4"]["unreached"] == [], found["h1"]


def test_missing_folder_is_an_error_of_that_host():
    with Hosts(2) as hosts, tempfile.TemporaryDirectory() as folder:  # below /tmp, which each host has of its own
        code, text, _ = doctor(hosts, ["h1", "h2"], cwd=folder)
        assert code == 69, text
        assert f"h1, h2: error: working directory {folder} is not there" in text, text
        assert "0 of 2 hosts can be used" in text, text


def test_limits_differ_by_host():
    with Hosts(2) as hosts:
        hosts.configure_sshd("h2", f'ForceCommand ulimit -n 100; eval "$SSH_ORIGINAL_COMMAND"')
        _, text, _ = doctor(hosts, ["h1", "h2"])
        assert "h2: warning: a process may open 100 files" in text, text
        assert "h1: warning: a process may open" not in text, text


def test_missing_library_is_named():
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "the build has a compiler"
    with Hosts(1) as hosts:
        tree = hosts.directory / "tree"
        tree.mkdir()
        shutil.copy2(DSTRAIN, tree / "dstrain")
        subprocess.run([compiler, "-shared", "-x", "c", "/dev/null", "-o", tree / "libabsent_part.so"], check=True)
        subprocess.run([compiler, "-shared", "-x", "c", "/dev/null", "-o", tree / "libdstrain_engine.so", "-L", tree,
                        "-Wl,--no-as-needed", "-labsent_part"], check=True)
        (tree / "libabsent_part.so").unlink()
        done = subprocess.run([tree / "dstrain", "doctor", "--hosts", "h1:1", "--ssh-config", hosts.ssh_config],
                              capture_output=True, text=True, timeout=90, cwd=hosts.directory)
        assert done.returncode == 69, done.stdout + done.stderr
        assert "h1: error: library libabsent_part.so is missing" in done.stdout, done.stdout


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            start = time.monotonic()
            test()
            print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)
