"""What a network does to a transfer: each ends in the whole file or in a clear error, and nothing outside the cache changes."""
import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from server import TOKEN, Hub  # noqa: E402

DSTRAIN = os.environ["DSTRAIN"]
WEIGHTS = os.urandom(2 << 20)
NAME = "model.safetensors"


def environment(hub, home, **variables):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_") and not name.lower().endswith("_proxy")}
    return kept | hub.environment(home) | {name: str(value) for name, value in variables.items()}


def fetch(hub, home, code=0, what="org/model", **variables):
    done = subprocess.run([DSTRAIN, "fetch", what], env=environment(hub, home, **variables), capture_output=True, text=True, timeout=240)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert TOKEN not in done.stdout + done.stderr
    return done


def blobs(home):
    return pathlib.Path(home) / "hub/models--org--model/blobs"


def check_whole(home):
    content = next(pathlib.Path(home).rglob(f"snapshots/*/{NAME}")).read_bytes()
    assert content == WEIGHTS, "the file is another"
    assert not [p for p in blobs(home).iterdir() if p.name.startswith(".")], "a part was left"
    assert not list((pathlib.Path(home) / "hub/.locks").rglob("*.dstrain*")), "a lock was left"


def ranges(hub):
    return [one["range"] for one in hub.requests("cdn")]


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    hub = Hub(folder)
    hub.add("org/model", {"config.json": "{}", NAME: WEIGHTS})
    number = 0

    def case(**faults):
        global number
        number += 1
        hub.log.clear()
        hub.faults.clear()
        hub.faults.update(faults)
        return folder / f"home{number}"

    # Cut transfers go on where they ended.
    fetch(hub, home := case(cut_once=700_000))
    check_whole(home)
    assert ranges(hub) == [None, "bytes=700000-"], ranges(hub)
    fetch(hub, home := case(cut=500_000))
    check_whole(home)
    assert len(ranges(hub)) == 5, ranges(hub)

    # A server without ranges: from the start.
    fetch(hub, home := case(cut_once=700_000, no_range=True))
    check_whole(home)

    # 429 and 5xx pass; a server that goes on so is an error.
    fetch(hub, home := case(status=[429, 503, 500, 502]))
    check_whole(home)
    assert "503" in fetch(hub, case(status=[503] * 99), code=69).stderr

    # Silence is a cut.
    fetch(hub, home := case(silent=4))
    check_whole(home)

    # Wrong content once: again. Twice: an error with both digests, and nothing is kept.
    fetch(hub, home := case(wrong=1))
    check_whole(home)
    done = fetch(hub, home := case(wrong=99), code=65)
    assert hashlib.sha256(WEIGHTS).hexdigest() in done.stderr and "SHA-256" in done.stderr and "twice" in done.stderr, done.stderr
    wrong = hashlib.sha256(WEIGHTS[:-1] + bytes([WEIGHTS[-1] ^ 1])).hexdigest()
    assert wrong in done.stderr and not list(pathlib.Path(home).rglob(NAME)), done.stderr
    assert not [p for p in blobs(home).iterdir() if p.stat().st_size > 100], list(blobs(home).iterdir())

    # kill -9: the next one takes what is there.
    for share in (0.2, 0.5, 0.8):
        home = case(slow=0.05)
        process = subprocess.Popen([DSTRAIN, "fetch", "org/model"], env=environment(hub, home), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        part = blobs(home) / f".{hashlib.sha256(WEIGHTS).hexdigest()}.dstrain.incomplete"
        deadline = time.time() + 60
        while not (part.exists() and part.stat().st_size > share * len(WEIGHTS)):
            assert time.time() < deadline and process.poll() is None, "no part grew"
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        size = part.stat().st_size
        assert 0 < size < len(WEIGHTS) and list((home / "hub/.locks").rglob("*.dstrain"))
        hub.log.clear()
        hub.faults.clear()
        fetch(hub, home)
        check_whole(home)
        assert ranges(hub) == [f"bytes={size}-"], (size, ranges(hub))

    # Killed when all content was there, before the snapshot was: nothing comes again.
    fetch(hub, home := case())
    shutil.rmtree(blobs(home).parent / "snapshots")
    shutil.rmtree(blobs(home).parent / "refs")
    hub.log.clear()
    fetch(hub, home)
    check_whole(home)
    assert ranges(hub) == [], ranges(hub)

    # A part that is not of this file costs one more transfer.
    home = case()
    blobs(home).mkdir(parents=True)
    (blobs(home) / f".{hashlib.sha256(WEIGHTS).hexdigest()}.dstrain.incomplete").write_bytes(b"x" * 1000)
    fetch(hub, home)
    check_whole(home)
    assert ranges(hub) == ["bytes=1000-", None], ranges(hub)

    # Many at once: one transfer, and all have it.
    home = case(slow=0.01)
    many = [subprocess.Popen([DSTRAIN, "fetch", "org/model"], env=environment(hub, home), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(24)]
    told = [process.communicate(timeout=240) for process in many]
    assert all(process.returncode == 0 for process in many), told
    assert len({out for out, _ in told}) == 1
    check_whole(home)
    assert len(ranges(hub)) == 1, ranges(hub)

    # The first of six is killed amid its work: another goes on.
    home = case(slow=0.03)
    many = [subprocess.Popen([DSTRAIN, "fetch", "org/model"], env=environment(hub, home), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(4)]
    deadline = time.time() + 60
    while not (holder := next((home / "hub/.locks").rglob(f"{hashlib.sha256(WEIGHTS).hexdigest()}.dstrain/holder"), None)):
        assert time.time() < deadline, "nobody holds the lock"
        time.sleep(0.01)
    time.sleep(0.3)
    killed = int(holder.read_text().split()[1])
    os.kill(killed, signal.SIGKILL)
    told = {process.pid: process.communicate(timeout=240) for process in many}
    assert {process.pid: process.returncode for process in many} == {pid: -9 if pid == killed else 0 for pid in told}, told
    check_whole(home)

    # Redirects: not in circles, not to what is no address, and the token stays.
    assert "more than 5 times" in fetch(hub, case(loop=True), code=65).stderr
    for where in ("file:///etc/passwd", "gopher://x/", "http://user:pass@127.0.0.2/x", "http://a b\t/"):
        done = fetch(hub, case(redirect=where), code=65)
        assert "pass@" not in done.stderr and "redirect" in done.stderr, done.stderr

    # Answers that are none.
    for raw in (b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 300 + b"\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000,
                b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", b"HTTP/1.1 206 Part\r\nContent-Range: bytes 5-9/10\r\n\r\nabcde",
                b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\nabc", b"HTTP/1.1 200 OK\r\n\r\n" + WEIGHTS + b"more",
                b"HTTP/1.1 302 Found\r\n\r\n"):
        done = fetch(hub, home := case(raw=raw), code=65)
        assert not list(pathlib.Path(home).rglob(NAME)), raw[:40]
    chunks = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(part), part) for part in (WEIGHTS[at:at + 50_000] for at in range(0, len(WEIGHTS), 50_000)))
    fetch(hub, home := case(raw=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nTrailer: x\r\n\r\n"))
    check_whole(home)
    fetch(hub, home := case(raw=b"HTTP/1.0 200 OK\n\n" + WEIGHTS))
    check_whole(home)

    # Lists of files that would lead out of the cache.
    good = "a" * 40
    for path, oid in (("../../../escaped", good), ("/tmp/escaped", good), ("a/../../escaped", good), ("config.json\n", good), ("", good),
                      ("config.json", "../../../../escaped"), ("config.json", "A" * 40), ("a" * 300, good)):
        done = fetch(hub, case(tree=[dict(type="file", path=path, size=2, oid=oid)]), code=65)
        assert "list of files" in done.stderr, done.stderr
    assert not list(folder.rglob("escaped")) and not pathlib.Path("/tmp/escaped").exists()
    twice = dict(type="file", path="config.json", size=2, oid=good)
    assert "twice" in fetch(hub, case(tree=[twice, twice]), code=65).stderr

    # Pages of one file each.
    fetch(hub, home := case(pages=1))
    check_whole(home)

    # A link where a part should be, planted by another: not written through.
    home = case()
    blobs(home).mkdir(parents=True)
    (folder / "victim").write_text("kept")
    (blobs(home) / f".{hashlib.sha256(WEIGHTS).hexdigest()}.dstrain.incomplete").symlink_to(folder / "victim")
    done = subprocess.run([DSTRAIN, "fetch", "org/model"], env=environment(hub, home), capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and (folder / "victim").read_text() == "kept", done
print("faults: ok")
