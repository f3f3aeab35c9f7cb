"""A probe that stays for many questions (test/models/serve.h): it loads LibTorch once."""
import subprocess
import tempfile
from pathlib import Path


class Probe:
    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.folder = tempfile.TemporaryDirectory()

    def run(self, *arguments, check=False):
        """As subprocess.run with text and captured output."""
        words, files = list(map(str, arguments)), [Path(self.folder.name) / name for name in ("stdout", "stderr")]
        assert not any(mark in word for word in words for mark in "\t\n"), words
        self.process.stdin.write("\t".join([*map(str, files), *words]) + "\n")
        self.process.stdin.flush()
        code = self.process.stdout.readline()
        if not code:
            raise SystemExit(f"{self.process.args[0]} ended with {self.process.wait()}")
        done = subprocess.CompletedProcess(words, int(code), *(file.read_text() for file in files))
        if check and done.returncode != 0:
            raise SystemExit(f"{self.process.args[0]} {' '.join(words)}: exit {done.returncode}: {done.stdout}{done.stderr}")
        return done
