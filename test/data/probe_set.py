"""Data sets as the probe reads them: image_probe's answers to `set`."""
import json
import subprocess
import sys

import numpy

probe = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


class Set:
    """What the probe answers for a data set."""

    def __init__(self, name, path, cache, split="train", label="-", subset=0, seed=0, side=32, code=0):
        question = f"set {name} {path} {split} {label} {subset} {seed} {side} {cache}\n"
        probe.stdin.write(question.encode())
        probe.stdin.flush()
        self.head = json.loads(probe.stdout.readline())
        assert self.head["code"] == code, (question, self.head)
        self.error = self.head.get("error")
        if code:
            return
        count, each = self.head["samples"], 1 + self.head["bytes"]
        records = numpy.frombuffer(probe.stdout.read(count * each), numpy.uint8).reshape(count, each)
        self.labels, self.pixels = records[:, 0].tolist(), records[:, 1:]
        self.notes = " ".join(self.head["notes"])

    def check_same(self, other):
        assert self.labels == other.labels and (self.pixels == other.pixels).all()
        for key in ("classes", "names", "side"):
            assert self.head[key] == other.head[key], (key, self.head, other.head)


def end_probe():
    probe.stdin.close()
    assert probe.wait() == 0
