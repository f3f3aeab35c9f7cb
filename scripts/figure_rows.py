"""Rows of measurements, and the figures that pages show of them.

Rows are files of tab-separated values, one for each table, whose first line names the columns:
- case, ranks (GPUs), hardware, date, commit, command: what was run and how to run it again. Empty: not known.
- step_ms, rate, mfu, memory_gib and others: what was measured. "1.0, 1.1" are two runs, "28.0k" thousands.
- planned_...: what `dstrain plan` said, the value or how far it was off ("+0.1 %").
- peer and peer_...: what the same call ran beside it; one_gpu_ms: the same work for each GPU on one of them; limit: the aim or the bound.
The newest row of a case stands first. A newer row takes the place of an older one that has nothing more to say (another card, another peer).
scripts/benchmark --record writes such rows.
"""
import dataclasses
import pathlib
import re
import statistics
import typing

ROOT = pathlib.Path(__file__).resolve().parents[1]
STEP_COLUMNS = ("case ranks hardware date commit command rate step_ms mfu memory_gib planned_ms planned_gib one_gpu_ms peer peer_rate peer_ms "
                "peer_gib limit note").split()


def read(path):
    """The names of the columns and the rows, as dictionaries of texts."""
    lines = path.read_text().splitlines()
    columns = lines[0].split("\t")
    rows = []
    for number, line in enumerate(lines[1:], 2):
        cells = line.split("\t")
        if len(cells) != len(columns):
            raise ValueError(f"{path}:{number}: {len(cells)} cells where the first line names {len(columns)} columns")
        rows.append(dict(zip(columns, cells)))
    return columns, rows


def write(path, columns, rows):
    path.write_text("".join("\t".join(line) + "\n" for line in [columns, *([row[c] for c in columns] for row in rows)]))


def same_case(a, b):
    return all(a.get(key, "") == b.get(key, "") for key in ("case", "ranks", "hardware"))


def record(path, row):
    """Puts a row in front of those of its case; the older ones with the same peer go."""
    columns, rows = read(path)
    unknown = set(row) - set(columns)
    if unknown:
        raise ValueError(f"{path} has no column {', '.join(sorted(unknown))}")
    row = {column: re.sub(r"\s+", " ", str(row.get(column, ""))) for column in columns}
    place = next((i for i, old in enumerate(rows) if same_case(old, row)), len(rows))
    kept = [old for old in rows if not (same_case(old, row) and old.get("peer", "") in ("", row.get("peer", "")))]
    kept.insert(min(place, len(kept)), row)
    write(path, columns, kept)


def numbers(text):
    """The numbers of "119.3, 118.8" or "26.6k, 26.4k tok/s"."""
    return [float(value) * (1000 if kilo else 1) for value, kilo in re.findall(r"(\d+(?:\.\d+)?)(k?)", text)]


def mean(text):
    found = numbers(text)
    return statistics.mean(found) if found else None


def shown(text):
    """Thousands get their comma."""
    return re.sub(r"(?<![\d.,])\d{4,}(?![\d.])", lambda m: f"{int(m[0]):,}", text)


def ratio(row):
    """How many times as fast as the peer."""
    ours, theirs = mean(row["step_ms"]), mean(row["peer_ms"])
    if ours and theirs:
        return f"{theirs / ours:.2f}"
    ours, theirs = mean(row["rate"]), mean(row["peer_rate"])
    return f"{ours / theirs:.2f}" if ours and theirs else ""


def day(row):
    return row["date"][5:]


def figure(row):
    return shown(row["rate"]) or (row["step_ms"] and f"{shown(row['step_ms'])} ms")


def peer_figure(row):
    return shown(row["peer_rate"]) or (row["peer_ms"] and f"{shown(row['peer_ms'])} ms")


def with_plan(measured, planned):
    return lambda row: shown(row[measured]) + (f" ({shown(row[planned])})" if row[planned] else "") if row[measured] else ""


def of_one_gpu(row):
    one, ours = mean(row["one_gpu_ms"]), mean(row["step_ms"])
    return f"{one / ours:.3f}" if one and ours else ""


@dataclasses.dataclass
class Column:
    title: str
    value: typing.Callable | str  # of a row, or the name of its column
    filled: str = ""  # a column: the newest row of the case that has it is taken, instead of the newest of all


@dataclasses.dataclass
class Table:
    title: str
    about: str
    file: str
    columns: list
    where: typing.Callable = lambda row: True
    cases: tuple = ()  # those that the page shows, in this order; none: all


@dataclasses.dataclass
class Page:
    path: str
    folder: str
    head: str
    tables: list
    tail: str = ""
