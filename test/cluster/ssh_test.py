"""The ssh transport on fake hosts: problems by class (promise 13), 40 hosts (14), quoting (17), MaxStartups, --ship, no leftovers."""
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from hosts import Hosts

PROBE = pathlib.Path(os.environ["SSH_PROBE"])
ODD = "/tmp/o'dd \"$(touch canary)\" ;#ü/probe"  # /tmp is each host's own


def probe(hosts, names, *options, program=ODD, environment=None, timeout=60):
    """{host: what the probe says of it}, and the seconds that it took."""
    start = time.monotonic()
    done = subprocess.run([PROBE, "launch", "--config", hosts.ssh_config, "--program", program, *options, "--", *names],
                          capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, env=environment)
    seconds = time.monotonic() - start
    assert done.returncode == 0, f"exit {done.returncode}: {done.stdout}{done.stderr}"
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    turns = int(done.stderr.split("turns ")[1].split()[0])
    assert turns < 2000 + 200 * len(names), f"{turns} turns: it does not wait but spin"
    return {line["host"]: line for line in lines}, seconds


def put(hosts, host, data=None, path=ODD):
    """The program at `path` of one host."""
    target = hosts.directory / host / "tmp" / pathlib.Path(path).relative_to("/tmp")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(PROBE.read_bytes() if data is None else data)
    target.chmod(0o755)


def ssh_processes(hosts):
    """Live ssh processes on this machine that use the hosts' configuration."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if words[0] == b"ssh" and str(hosts.ssh_config).encode() in words:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def wait_until(condition, limit=2):
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, f"not so after {limit} s"
        time.sleep(0.02)


def test_every_problem_has_its_class():
    with Hosts(9) as hosts:
        data = PROBE.read_bytes()
        for host in ("h1", "h2", "h3", "h4", "h7", "h8"):
            put(hosts, host)
        put(hosts, "h5", data[:18] + b"\xb7\0" + data[20:])  # ELF for another machine
        put(hosts, "h6", data.replace(b"libstdc++.so.", b"libnotc++.so."))
        # h9 has nothing.
        hosts.configure_sshd("h7", "ForceCommand echo Welcome to h7; eval \"$SSH_ORIGINAL_COMMAND\"")
        hosts.configure_sshd("h8", "ForceCommand echo This account is currently not available.; exit 1")
        address = "10.213.7.3"
        hosts.ssh_config.write_text(hosts.ssh_config.read_text() + f"""
Host wrong-key unknown-key no-key
  User root
  HostName {address}
  UserKnownHostsFile {hosts.directory}/known_hosts
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
        hosts.drop("h2")
        expected = {
            "h1": ("hello", "probe"), "h2": ("timeout", "no answer"), "no-such-host.invalid": ("name", "does not resolve"),
            "h3:23": ("refused", "port 23"), "wrong-key": ("host key", "Offending"),
            "unknown-key": ("host key", "unknown"), "no-key": ("authentication", "Permission denied (publickey)"),
            "h5": ("cannot run", "Exec format error"), "h6": ("cannot run", "libnotc++.so"),
            "h7": ("other", "start-up there prints to standard output: 'Welcome to h7'"),
            "h8": ("other", "prints 'This account is currently not available.' and ends"),
            "h9": ("no binary", "No such file"),
        }
        found, seconds = probe(hosts, expected)
        for host, (kind, text) in expected.items():
            line = found[host]
            print(f"{line['ms']:6} ms  {host}: {line.get('hello') or line['kind'] + ': ' + line['text']}", flush=True)
            if kind == "hello":
                assert line.get("hello") == text, line
            else:
                assert line["kind"] == kind and text in line["text"] and line["hint"], line
        assert seconds < 7, f"{seconds:.1f} s is more than ConnectTimeout + 2 s"
        assert not ssh_processes(hosts)
        for host in hosts.names:
            assert not hosts.run(host, "sh", "-c", f"ls {hosts.directory}/{host}/home/canary /tmp/canary canary 2>/dev/null").stdout, "a word was executed"

        # A login that hangs is given up after the limit, and nothing of it stays.
        hosts.undrop("h2")
        hosts.configure_sshd("h2", "ForceCommand exec sleep 1000")
        found, seconds = probe(hosts, ["h2"], "--hello-limit", "2")
        assert found["h2"]["kind"] == "timeout" and "within 2 s" in found["h2"]["text"], found
        assert seconds < 7 and not ssh_processes(hosts)

        # The controller's death takes every ssh along, connected or not.
        hosts.drop("h4")
        running = subprocess.Popen([PROBE, "launch", "--config", hosts.ssh_config, "--program", ODD, "h2", "h4"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: len(ssh_processes(hosts)) == 2)
        assert all(os.getsid(pid) == pid for pid in ssh_processes(hosts)), "Ctrl-C would reach ssh"
        running.send_signal(signal.SIGKILL)
        running.wait()
        wait_until(lambda: not ssh_processes(hosts))

        # Words before the program arrive byte by byte.
        value = "' \" $(id) ; \\ ü *"
        put(hosts, "h1", b'#!/bin/sh\nprintf %s "$DSTRAIN_ODD" > /tmp/seen\nexec ' + b'"$(dirname "$0")"/real "$@"\n')
        put(hosts, "h1", path=str(pathlib.Path(ODD).with_name("real")))
        found, _ = probe(hosts, ["h1"], "--environment", "DSTRAIN_ODD=" + value)
        assert found["h1"].get("hello") == "probe", found
        assert (hosts.directory / "h1/tmp/seen").read_text() == value


def test_dropped_connections_are_tried_again():
    with Hosts(1, max_startups="1:100:1") as hosts:
        put(hosts, "h1")
        with socket.create_connection(("10.213.7.1", 22)) as occupant:
            occupant.recv(100)
            found, seconds = probe(hosts, ["h1"])
            assert found["h1"]["kind"] == "connection", found
            assert seconds < 7
            running = subprocess.Popen([PROBE, "launch", "--config", hosts.ssh_config, "--program", ODD, "h1"],
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            time.sleep(0.1)
        said = json.loads(running.communicate(timeout=20)[0])
        assert said.get("hello") == "probe", said


def test_ship():
    with Hosts(3) as hosts, tempfile.TemporaryDirectory() as here:
        for host in hosts.names:
            hosts.configure_sshd(host, "SetEnv XDG_CACHE_HOME=/tmp/cache")
        program = pathlib.Path(here) / "o'dd tree" / "probe"
        program.parent.mkdir()
        shutil.copy(PROBE, program)
        (program.parent / "libdstrain_engine.so").write_bytes(b"library")

        def shipped(host):
            folder = hosts.directory / host / "tmp/cache/dstrain/ship"
            return sorted(p.name for p in folder.iterdir()) if folder.exists() else []

        def logins():
            return [hosts.num_logins(host) for host in hosts.names]

        found, _ = probe(hosts, hosts.names, program=program)
        assert all(line["kind"] == "no binary" for line in found.values()), found
        before = logins()
        found, seconds = probe(hosts, hosts.names, "--ship", program=program)
        assert all(line.get("hello") == "probe" for line in found.values()), found
        assert [b - a for a, b in zip(before, logins())] == [3, 3, 3], "not there, copy, start"
        print(f"copied to 3 hosts and started in {seconds:.1f} s")
        copies = [shipped(host) for host in hosts.names]
        assert len(copies[0]) == 1 and copies[0] == copies[1] == copies[2], copies
        folder = hosts.directory / "h1/tmp/cache/dstrain/ship" / copies[0][0]
        assert sorted(p.name for p in folder.iterdir()) == ["libdstrain_engine.so", "probe"]

        before = logins()
        found, _ = probe(hosts, hosts.names, "--ship", program=program)
        assert all(line.get("hello") == "probe" for line in found.values()), found
        assert [b - a for a, b in zip(before, logins())] == [1, 1, 1], "the copy is used again"

        # Another version: another library beside the same program.
        (program.parent / "libdstrain_engine.so").write_bytes(b"other library")
        found, _ = probe(hosts, ["h1"], "--ship", program=program)
        assert found["h1"].get("hello") == "probe" and len(shipped("h1")) == 2

        # The same files at the same place need no copy; other files there are not used.
        shared = hosts.directory / "shared" / "probe"
        shared.parent.mkdir()
        shutil.copy(PROBE, shared)
        before = logins()
        found, _ = probe(hosts, ["h2"], "--ship", program=shared)
        assert found["h2"].get("hello") == "probe" and shipped("h2") == copies[1]
        assert logins()[1] - before[1] == 1

        # What arrives broken is not put into place, and is said.
        (program.parent / "libdstrain_engine.so").write_bytes(b"third library")
        tools = pathlib.Path(here) / "tools"
        tools.mkdir()
        (tools / "tar").write_text(f"#!/bin/sh\n{shutil.which('tar')} \"$@\" | sed 's/third library/dirty library/'\n")
        (tools / "tar").chmod(0o755)
        broken = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}
        found, _ = probe(hosts, ["h3"], "--ship", program=program, environment=broken)
        assert found["h3"]["kind"] == "no binary" and "not what was sent" in found["h3"]["text"], found
        assert shipped("h3") == copies[2], "a half copy stayed"

        # No room there.
        hosts.run("h3", "mount", "-t", "tmpfs", "-o", "size=64k", "none", "/tmp/cache", check=True)
        found, _ = probe(hosts, ["h3"], "--ship", program=program)
        assert found["h3"]["kind"] == "no binary" and "KiB are free in /tmp/cache" in found["h3"]["text"], found
        assert not ssh_processes(hosts)


def test_copies_fan_out():
    with Hosts(9) as hosts, tempfile.TemporaryDirectory() as here:
        program = pathlib.Path(here) / "probe"
        shutil.copy(PROBE, program)

        def sources():
            """How many logins came from this machine, and how many from another host."""
            logs = [(hosts.directory / host / "sshd.log").read_text() for host in hosts.names]
            lines = [line for log in logs for line in log.splitlines() if "Accepted publickey" in line]
            ours = sum("from 10.213.7.254 " in line for line in lines)
            return ours, len(lines) - ours

        for host in hosts.names:
            hosts.configure_sshd(host, "SetEnv XDG_CACHE_HOME=/tmp/first")
        found, _ = probe(hosts, hosts.names, "--ship", program=program)
        assert all(line.get("hello") == "probe" for line in found.values()), found
        assert sources()[1] == 0, "they have no key for each other"

        for host in hosts.names:
            hosts.configure_sshd(host, "SetEnv XDG_CACHE_HOME=/tmp/second")
            hosts.run(host, "mount", "--bind", hosts.ssh_config, "/etc/ssh/ssh_config", check=True)
        found, seconds = probe(hosts, hosts.names, "--ship", program=program)
        assert all(line.get("hello") == "probe" for line in found.values()), found
        assert sources()[1] >= 2, f"{sources()[1]} of 9 copies came from another host"
        print(f"9 copies in {seconds:.1f} s, {sources()[1]} of them from host to host")


def plain_ssh(hosts):
    """Seconds of plain ssh to all hosts at once: what this machine can do at this moment."""
    start = time.monotonic()
    running = [subprocess.Popen(["ssh", "-F", hosts.ssh_config, host, "true"], stdin=subprocess.DEVNULL) for host in hosts.names]
    assert all(process.wait() == 0 for process in running)
    return time.monotonic() - start


def test_forty_hosts():
    with Hosts(40) as hosts:
        shutil.copy(PROBE, hosts.directory / "probe")
        plain = plain_ssh(hosts)
        before = [hosts.num_logins(host) for host in hosts.names]
        found, seconds = probe(hosts, hosts.names, program=hosts.directory / "probe")
        assert all(line.get("hello") == "probe" for line in found.values()), found
        last = max(line["ms"] for line in found.values()) / 1000
        print(f"40 agents said hello within {last:.2f} s, plain ssh takes {plain:.2f} s; all ended after {seconds:.2f} s")
        assert last < max(6, 2 * plain), f"{last:.2f} s"
        assert [hosts.num_logins(host) - n for host, n in zip(hosts.names, before)] == [1] * 40
        dropped = [host for host in hosts.names if "MaxStartups" in (hosts.directory / host / "sshd.log").read_text()]
        assert not dropped, dropped


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            print(name, flush=True)
            test()
