"""HTTPS and proxies: only good certificates of the right host, no way from https to http, and a proxy sees no token of an https host."""
import base64
import os
import pathlib
import shutil
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from server import TOKEN, Hub  # noqa: E402

if shutil.which("openssl") is None:
    print("openssl is not here")
    sys.exit(77)

PROXIES = ("https_proxy", "http_proxy", "all_proxy", "no_proxy")


def make_certificate(folder, name, hosts, days=2):
    """(certificate, key) of `hosts`, which is its own authority."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", str(days),
                    "-subj", f"/CN={name}", "-addext", f"subjectAltName={hosts}"], check=True, capture_output=True)
    return certificate, key


class Proxy(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Takes CONNECT, and hands bytes on; `seen` holds what it was told."""
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), self.Handler)
        self.seen, self.bytes = [], []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += self.request.recv(1)
            self.server.seen.append(head.decode())
            host, port = head.split()[1].decode().rsplit(":", 1)
            with socket.create_connection((host, int(port))) as other:
                self.request.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                back = threading.Thread(target=self.copy, args=(other, self.request))
                back.start()
                self.copy(self.request, other)
                back.join()

        def copy(self, source, target):
            try:
                while content := source.recv(1 << 16):
                    self.server.bytes.append(content)
                    target.sendall(content)
                target.shutdown(socket.SHUT_WR)
            except OSError:
                pass


def fetch(hub, home, code=0, **variables):
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("HF_", "SSL_CERT")) and name.lower() not in PROXIES}
    done = subprocess.run([os.environ["DSTRAIN"], "fetch", "org/model"], env=kept | hub.environment(home) | variables, capture_output=True,
                          text=True, timeout=240)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert TOKEN not in done.stdout + done.stderr
    return done


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    good = make_certificate(folder, "good", "DNS:localhost,IP:127.0.0.2")
    files = {"config.json": "{}", "model.safetensors": os.urandom(1 << 20)}
    hub = Hub(folder, tls=good)
    hub.add("org/model", files)
    trusted = dict(SSL_CERT_FILE=str(good[0]), HF_TOKEN=TOKEN)

    path = pathlib.Path(fetch(hub, folder / "good", **trusted).stdout.strip())
    assert (path / "model.safetensors").read_bytes() == files["model.safetensors"]
    assert all(one["token"] == f"Bearer {TOKEN}" for one in hub.requests("hub"))
    assert [one["token"] for one in hub.requests("cdn")] == [None]

    # Authorities of this machine do not know it; no file of authorities.
    hub.log.clear()
    done = fetch(hub, folder / "unknown", code=69, HF_TOKEN=TOKEN)
    assert "certificate of localhost is refused" in done.stderr or "no certificates on this machine" in done.stderr, done.stderr
    done = fetch(hub, folder / "unknown", code=69, SSL_CERT_FILE="/nowhere.pem", HF_TOKEN=TOKEN)
    assert "/nowhere.pem" in done.stderr, done.stderr
    assert not hub.log, hub.log

    # The certificate of another host, and one of another authority.
    for name, hosts in (("other", "DNS:other.example"), ("address", "IP:127.0.0.2")):
        wrong = make_certificate(folder, name, hosts)
        another = Hub(folder, tls=wrong)
        another.add("org/model", files)
        done = fetch(another, folder / name, code=69, SSL_CERT_FILE=str(wrong[0]))
        assert "refused: hostname mismatch" in done.stderr, done.stderr
        assert "refused: self-signed certificate" in fetch(another, folder / name, code=69, **trusted).stderr
        assert not another.log, another.log

    # From https to http: not even for content whose digest is known.
    plain = Hub(folder, tls=good, cdn_tls=False)
    plain.add("org/model", files)
    assert "not encrypted" in fetch(plain, folder / "plain", code=65, **trusted).stderr
    assert not plain.requests("cdn")

    # A proxy hands on what it cannot read.
    proxy = Proxy()
    address = f"127.0.0.1:{proxy.server_address[1]}"
    fetch(hub, folder / "proxy", https_proxy=f"http://user:secret@{address}", **trusted)
    assert len(proxy.seen) >= 4 and proxy.seen[0].startswith("CONNECT localhost:"), proxy.seen
    assert f"Proxy-Authorization: Basic {base64.b64encode(b'user:secret').decode()}" in proxy.seen[0]
    assert TOKEN not in "".join(proxy.seen) and TOKEN.encode() not in b"".join(proxy.bytes), "the proxy saw the token"
    before = len(proxy.seen)
    fetch(hub, folder / "direct", https_proxy=f"http://{address}", no_proxy="localhost,127.0.0.2", **trusted)
    assert len(proxy.seen) == before
    done = fetch(hub, folder / "none", code=69, https_proxy="http://user:secret@127.0.0.1:9", **trusted)
    assert "the proxy 127.0.0.1:9" in done.stderr and "secret" not in done.stderr, done.stderr
print("tls: ok")
