#!/usr/bin/env python3
"""scripts/figures.py [--check]: renders the pages of measurements from the rows beside them; --check compares and exits with 1 where one differs.
What rows hold: figure_rows.py; what pages show: figure_pages.py."""
import argparse
import re
import sys

from figure_pages import PAGES
from figure_rows import ROOT, read, same_case, shown

WIDTH, LINES = 140, 150  # of a page


def rendered(page):
    folder = ROOT / page.folder
    lines = paragraphs(page.head)
    for table in page.tables:
        lines += ["", f"## {table.title}", *filled(table.about), ""] if table.title else [""]
        lines += [" | ".join(c.title for c in table.columns), " | ".join("---" for _ in table.columns)]
        _, rows = read(folder / table.file)
        wanted = list(filter(table.where, rows))
        lacking = [case for case in table.cases if not any(row["case"] == case for row in wanted)]
        if lacking:
            raise ValueError(f"{page.folder}/{table.file} has no row of {'; '.join(lacking)}, which {page.path} shows")
        if table.cases:
            wanted = sorted((row for row in wanted if row["case"] in table.cases), key=lambda row: table.cases.index(row["case"]))
        done = []
        for row in wanted:
            if any(same_case(row, old) for old in done):
                continue
            done.append(row)
            cells = []
            for column in table.columns:
                source = next((r for r in rows if same_case(r, row) and r[column.filled]), row) if column.filled else row
                if callable(column.value):
                    cells.append(column.value(source))
                else:
                    cells.append(source[column.value] if column.value == "case" else shown(source[column.value]))
            lines.append(re.sub(r"[| ]*$", "", " | ".join(cells)))  # Markdown needs no bars at the ends
    lines += ["", *paragraphs(page.tail)] if page.tail else []
    wide = [line for line in lines if len(line) > WIDTH]
    if wide:
        raise ValueError("\n".join([f"{page.path}: {WIDTH} columns are allowed", *(f"{len(line)}: {line}" for line in wide)]))
    if len(lines) > LINES:
        raise ValueError(f"{page.path}: {len(lines)} lines, {LINES} are allowed; show fewer cases")
    return "\n".join(lines) + "\n"


def paragraphs(text):
    lines = []
    for part in text.strip().split("\n\n"):
        lines += [*([""] if lines else []), *filled(part)]
    return lines


def filled(text):
    """A paragraph in lines of at most WIDTH columns."""
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) + 1 > WIDTH:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare the pages with the rows instead of writing them")
    options = parser.parse_args()
    wrong = []
    for page in PAGES:
        text, path = rendered(page), ROOT / page.path
        if options.check and (not path.exists() or path.read_text() != text):
            wrong.append(page.path)
        elif not options.check:
            path.write_text(text)
    if wrong:
        print(f"{', '.join(wrong)}: not what the rows say; scripts/figures.py renews the pages")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
