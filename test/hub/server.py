"""A Hub and its content servers on this machine, with every fault that a network has.

Hub(root) serves root/models/ORG/NAME/... and root/datasets/ORG/NAME/... at 127.0.0.1; files named *.safetensors, *.bin and *.parquet are LFS
files, which it sends to a second server, the "cdn", at 127.0.0.2. `log` holds each request; `faults` is a dict that tests set:

  cut: N          the cdn ends each answer after N bytes
  cut_once: N     the cdn ends its first answer after N bytes
  slow: S         the cdn waits S seconds after each 64 KiB
  silent: S       the cdn sends half of its first answer and then nothing for S seconds
  wrong: N        so many answers of the cdn have their last byte changed
  no_range: True  the cdn answers 200 to a Range
  status: [503, 429, ...]   the hub's next answers, with Retry-After: 0
  loop: True      files redirect to themselves
  redirect: URL   LFS files redirect there
  gated: True     files and tree want a token, TOKEN
  tree: [...]     entries in the place of the tree
  pages: N        so many entries on a page of the tree
  raw: bytes      the cdn's whole answer, as it stands
"""
import hashlib
import http.server
import json
import os
import pathlib
import socketserver
import ssl
import subprocess
import threading
import time
import urllib.parse

TOKEN = "hf_" + "testtoken" * 3
LFS = (".safetensors", ".bin", ".parquet")


def git_sha1(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address):
        pass  # clients that go away are the point


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def setup(self):
        super().setup()
        self.hub = self.server.hub

    def note(self, where):
        self.hub.log.append(dict(where=where, method=self.command, path=self.path, token=self.headers.get("Authorization"),
                                 range=self.headers.get("Range")))

    def reply(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_file(self, content, etag, faults):
        """A file or the part that Range asks for, with the faults of the cdn."""
        start, wanted = 0, self.headers.get("Range")
        if wanted and not faults.get("no_range"):
            first, last = wanted.removeprefix("bytes=").split("-")
            start = int(first)
            end = min(int(last) + 1, len(content)) if last else len(content)
            if start >= len(content):
                return self.reply(416)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
            body = content[start:end]
        else:
            self.send_response(200)
            body = content
        if faults.get("wrong", 0) > 0 and body:
            faults["wrong"] -= 1
            body = body[:-1] + bytes([body[-1] ^ 1])
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{etag}"')
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if self.command == "HEAD":
            return None
        cut = faults.pop("cut_once", None) or faults.get("cut")
        if silent := faults.pop("silent", None):
            self.wfile.write(body[:len(body) // 2])
            self.wfile.flush()
            time.sleep(silent)
        elif cut is not None and cut < len(body):
            self.wfile.write(body[:cut])
        else:
            for at in range(0, len(body), 1 << 16):
                self.wfile.write(body[at:at + (1 << 16)])
                if faults.get("slow"):
                    time.sleep(faults["slow"])
            return None
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(2)
        return None


class Cdn(Handler):
    def do_GET(self):
        self.note("cdn")
        faults = self.hub.faults
        if "raw" in faults:
            self.wfile.write(faults["raw"])
            self.close_connection = True
            return
        digest = urllib.parse.urlsplit(self.path).path.strip("/")
        content = self.hub.by_digest.get(digest)
        if content is None:
            return self.reply(404)
        return self.send_file(content, digest, faults)

    do_HEAD = do_GET


class Front(Handler):
    def do_GET(self):
        self.note("hub")
        hub = self.hub
        if hub.faults.get("status"):
            return self.reply(hub.faults["status"].pop(0), headers=[("Retry-After", "0")])
        split = urllib.parse.urlsplit(self.path)
        parts = [urllib.parse.unquote(part) for part in split.path.strip("/").split("/")]
        if parts[0] == "api" and parts[1] in ("models", "datasets"):
            return self.api(parts[1], "/".join(parts[2:4]), parts[4:], urllib.parse.parse_qs(split.query))
        kind = "models"
        if parts[0] == "datasets":
            kind, parts = "datasets", parts[1:]
        if len(parts) >= 5 and parts[2] == "resolve":
            return self.resolve(kind, "/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        return self.reply(404)

    do_HEAD = do_GET

    def may_read(self):
        return not self.hub.faults.get("gated") or self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def api(self, kind, repository, rest, query):
        hub = self.hub
        files = hub.files(kind, repository)
        if files is None:
            return self.reply(401, b'{"error":"Invalid username or password."}')
        commit = hub.commit(kind, repository)
        if rest and rest[0] == "revision" and rest[1] in ("main", commit, *hub.tags):
            siblings = [dict(rfilename=name) for name in files]
            return self.json(dict(id=repository, sha=commit, siblings=siblings, private=False, gated=bool(hub.faults.get("gated"))))
        if not rest:
            return self.json(dict(id=repository, sha=commit))
        if rest[0] == "tree" and rest[1] in ("main", commit):
            if not self.may_read():
                return self.reply(403)
            entries = hub.faults.get("tree")
            if entries is None:
                entries = [self.entry(name, content) for name, content in files.items()]
            page, at = hub.faults.get("pages", 1000), int(query.get("cursor", ["0"])[0])
            more = []
            if at + page < len(entries):
                more = [("Link", f'<{hub.endpoint}/api/{kind}/{repository}/tree/{commit}?recursive=true&cursor={at + page}>; rel="next"')]
            return self.json(entries[at:at + page], more)
        return self.reply(404)

    @staticmethod
    def entry(name, content):
        entry = dict(type="file", path=name, size=len(content), oid=git_sha1(content))
        if name.endswith(LFS):
            digest = hashlib.sha256(content).hexdigest()
            entry |= dict(oid=git_sha1(b"pointer of " + digest.encode()), lfs=dict(oid=digest, size=len(content), pointerSize=134))
        return entry

    def json(self, value, headers=()):
        self.reply(200, json.dumps(value).encode(), [("Content-Type", "application/json"), *headers])

    def resolve(self, kind, repository, revision, name):
        hub = self.hub
        files = hub.files(kind, repository)
        commit = hub.commit(kind, repository)
        if not self.may_read():
            return self.reply(403, headers=[("X-Error-Code", "GatedRepo")])
        if hub.faults.get("loop"):
            return self.reply(302, headers=[("Location", self.path)])
        if files is None or name not in files or revision not in ("main", commit, *hub.tags):
            return self.reply(404, headers=[("X-Error-Code", "EntryNotFound")])
        content = files[name]
        common = [("X-Repo-Commit", commit)]
        if not name.endswith(LFS):
            etag = git_sha1(content)
            if self.command == "HEAD":
                self.send_response(200)
                for key, value in [*common, ("ETag", f'"{etag}"'), ("Content-Length", str(len(content)))]:
                    self.send_header(key, value)
                self.end_headers()
                return None
            return self.send_file(content, etag, {})
        digest = hashlib.sha256(content).hexdigest()
        where = hub.faults.get("redirect") or f"{hub.cdn_url}/{digest}?signature=abc"
        return self.reply(302, headers=[*common, ("X-Linked-Etag", f'"{digest}"'), ("X-Linked-Size", str(len(content))), ("Location", where)])


class Hub:
    """`tls`: (certificate, key), files of a host "localhost"; the hub then speaks https, its cdn does not unless `cdn_tls`."""

    def __init__(self, root, tags=("v1",), tls=None, cdn_tls=True):
        self.root, self.tags = pathlib.Path(root), tags
        self.log, self.faults, self.by_digest = [], {}, {}
        self.contents = {}
        self.front = Server(("127.0.0.1", 0), Front)
        self.cdn = Server(("127.0.0.2", 0), Cdn)
        for server in (self.front, self.cdn):
            server.hub = self
            if tls and (server is self.front or cdn_tls):
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(*tls)
                server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        self.endpoint = f"https://localhost:{self.front.server_port}" if tls else f"http://127.0.0.1:{self.front.server_port}"
        self.cdn_url = f"http{'s' if tls and cdn_tls else ''}://127.0.0.2:{self.cdn.server_port}"

    def add(self, repository, files, kind="models"):
        """Files of a repository by their names: bytes or text."""
        files = {name: content.encode() if isinstance(content, str) else content for name, content in files.items()}
        self.contents[kind, repository] = files
        for name, content in files.items():
            if name.endswith(LFS):
                self.by_digest[hashlib.sha256(content).hexdigest()] = content

    def add_folder(self, repository, folder, kind="models"):
        folder = pathlib.Path(folder)
        self.add(repository, {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}, kind)

    def files(self, kind, repository):
        return self.contents.get((kind, repository))

    def commit(self, kind, repository):
        files = self.contents.get((kind, repository), {})
        return hashlib.sha1("".join(f"{name} {git_sha1(content)}\n" for name, content in files.items()).encode()).hexdigest()

    def environment(self, home, **more):
        """For a client that asks this hub and keeps its cache in `home`."""
        return dict(HF_ENDPOINT=self.endpoint, HF_HOME=str(home), HF_TOKEN="", HF_HUB_DOWNLOAD_TIMEOUT="2", DSTRAIN_OFFLINE="") | more

    def requests(self, where=None):
        return [one for one in self.log if where in (None, one["where"])]


def run(hub, home, *words, code=0, **variables):
    """dstrain beside `home`, with a Hub and caches of its own and nothing of this user's; without a terminal. `code` None: any."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "DSTRAIN_DATA", "DSTRAIN_MODEL"))}
    environment = kept | hub.environment(home, DSTRAIN_CACHE=str(home / "dstrain"), **variables)
    done = subprocess.run([os.environ["DSTRAIN"], *map(str, words)], env=environment, cwd=home.parent, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=280)
    assert code is None or done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
    return done
