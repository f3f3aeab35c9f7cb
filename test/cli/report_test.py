"""dstrain report in a browser: no request, no console message, the page's numbers are those of --json, keys, zoom, dark, print, narrow."""
import json
import os
import pathlib
import random
import sys
import tempfile
import time

from support import ROOT, expect_success, run

CHROMIUM = "/usr/bin/chromium"
HOSTILE = "<img src=x onerror=console.log(1)>\"'&\u202e"


def browser_or_skip():
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("skipped: pip install playwright")
        sys.exit(77)
    if not os.path.exists(CHROMIUM):
        print(f"skipped: {CHROMIUM} is not there (apt-get install chromium)")
        sys.exit(77)
    return sync_playwright


def write_lines(path, objects):
    path.write_text("".join(json.dumps(o) + "\n" for o in objects))


def make_run(path, rate=1.0, ranks=4, steps=400, seed=1, name="GPU"):
    """A run of a GPU with every file, so that the page has all its charts."""
    draw = random.Random(seed)
    (path / "ranks").mkdir(parents=True)
    (path / "traces").mkdir()
    lines = []
    for step in range(1, steps + 1):
        step_s = 0.1 / rate * draw.uniform(0.98, 1.03)
        lines.append({"kind": "step", "step": step, "loss": 2.2 / (1 + step / 150) + draw.gauss(0, 0.02), "samples_per_s": 64 / step_s,
                      "tokens_per_s": 32768 / step_s, "mfu": 0.41 * rate, "step_s": step_s, "memory_bytes": 41 << 30})
        if step % 100 == 0:
            lines.append({"kind": "evaluation", "step": step, "loss": 2.1 / (1 + step / 150), "accuracy": 0.5, "seconds": 1.0})
    write_lines(path / "metrics.jsonl", lines)
    write_lines(path / "events.jsonl", [{"kind": "started", "step": 0, "time": "2026-11-23T02:42:20Z"}])
    (path / "environment.json").write_text(json.dumps({"build": "dstrain", "system": "Linux", "gpu_driver": "580.1", "gpu_names": [name] * ranks,
                                                       "world_size": ranks}))
    (path / "plan.json").write_text(json.dumps({"model": name, "batch": {"global": 64}, "step_s": 0.095,
                                                "memory": {"allocated_bytes": 43 << 30, "device_bytes": 80 << 30}}))
    (path / "recipe.yaml").write_text((ROOT / "recipes/quickstart.yaml").read_text().replace("seed: 42", f"seed: {seed}"))
    for rank in range(ranks):
        rows = []
        for step in range(4, steps + 1, 4):
            gather, reduce = draw.uniform(0.004, 0.006), draw.uniform(0.009, 0.011) + 0.003 * (rank != 2)
            rows.append({"step": step, "start_ns": 1700000000000000000 + step * 10**8, "step_s": 0.1 / rate, "forward_s": 0.03 / rate,
                         "backward_s": 0.063 / rate, "norm_s": 0.001, "update_s": 0.004, "data_wait_s": 0.0, "host_s": 0.02,
                         "wait_s": {"gather": gather, "reduce": reduce, "receive": 0, "copy_in": 0.0005},
                         "lane_s": {"gather": 0.02, "reduce": 0.03}, "exposed_comm_s": gather + reduce, "allocated": 1, "reserved": 2,
                         "peak": 41 << 30, "host_rss": 4 << 30, "calls": {"all_gather shard-gather": [24, 123456789],
                                                                         "reduce_scatter shard-reduce": [24, 123456789]}, "traced": False})
        write_lines(path / "ranks" / f"rank{rank:04}.jsonl", rows)
        events = [{"ph": "M", "name": "thread_name", "pid": 1000, "tid": t, "ts": 0, "args": {"name": lane}}
                  for t, lane in enumerate(["compute", "gather", "reduce"])]
        events.append({"ph": "X", "cat": "dstrain_step", "name": "ProfilerStep#5", "pid": 1000, "tid": 9, "ts": 1000, "dur": 100000, "args": {"step": 5}})
        at = 1000.0
        for layer in range(24):
            for lane, offset, length in [(1, 0, 900), (0, 1000, 2600), (2, 3500, 1400)]:
                label = f"layer.{layer}" if layer else HOSTILE
                events.append({"ph": "X", "cat": "dstrain_lane", "name": label, "pid": 1000, "tid": lane, "ts": at + offset,
                               "dur": length * draw.uniform(0.8, 1.1), "args": {"action": layer, "step": 5}})
            at += 4000
        (path / "traces" / f"rank{rank}_trace.json").write_text(json.dumps({"traceEvents": events}))
    csv = ["timestamp, index, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%], utilization.memory [%], temperature.gpu, "
           "power.draw [W], clocks.sm [MHz]"]
    for second in range(60):
        for gpu in range(ranks):
            csv.append(f"2025/05/22 09:42:{second:02}.587, {gpu}, {name}, {41000 + second}, 81920, {90 + gpu}, 40, {60 + second // 10}, 640.5, 1700")
    (path / "gpu.csv").write_text("\n".join(csv) + "\n")
    return path


def figure(report, place):
    for key in place.split("."):
        report = report[int(key)] if isinstance(report, list) else report[key]
    return report


def open_page(browser, page_file, said, **options):
    page = browser.new_context(viewport={"width": 1000, "height": 900}, **options).new_page()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url) if not request.url.startswith("file:") else None)
    page.goto(page_file.as_uri())
    return page


def check_page(browser, page_file, report, pictures):
    said = []
    page = open_page(browser, page_file, said)
    cells = page.eval_on_selector_all("[data-figure]", "all => all.map(e => [e.dataset.figure, e.dataset.value])")
    assert len(cells) > 40, len(cells)
    for place, value in cells:
        assert abs(float(value) - figure(report, place)) <= 1e-9 * abs(float(value)), (place, value)
    assert page.locator("svg.chart").count() >= 8
    assert page.locator("svg.chart:not(:has(> title)), svg.chart:not(:has(> desc))").count() == 0
    assert page.locator("img").count() == 0
    if len(report["runs"]) > 1:
        assert not said, said
        return
    page.screenshot(path=pictures / "light.png", full_page=True)

    key = page.locator("svg.bars .key").first
    part = page.locator("svg.bars rect[data-series='0']").first
    key.focus()
    page.keyboard.press("Enter")
    assert key.get_attribute("aria-pressed") == "false" and not part.is_visible()
    page.keyboard.press("Enter")
    assert key.get_attribute("aria-pressed") == "true" and part.is_visible()

    timeline = page.locator("svg.timeline").first
    box = lambda: timeline.locator(".view").get_attribute("viewBox")
    whole = box()
    timeline.focus()
    page.keyboard.press("+")
    near = box()
    assert float(near.split()[2]) < float(whole.split()[2]), (near, whole)
    page.keyboard.press("ArrowRight")
    assert float(box().split()[0]) > float(near.split()[0])
    page.keyboard.press("0")
    assert [float(x) for x in box().split()] == [float(x) for x in whole.split()]

    lines = page.locator("svg.lines").first
    lines.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#tip").is_visible() and "step" in page.locator("#tip").inner_text()
    page.locator("svg.lines .pad").first.hover()
    assert page.locator("#tip").is_visible()
    page.emulate_media(media="print")
    assert not page.locator("#tip").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.pdf(path=pictures / "print.pdf")

    dark = open_page(browser, page_file, said, color_scheme="dark")
    assert dark.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    dark.screenshot(path=pictures / "dark.png", full_page=True)
    narrow = open_page(browser, page_file, said)
    narrow.set_viewport_size({"width": 375, "height": 800})
    assert narrow.evaluate("document.documentElement.scrollWidth") <= 375
    narrow.screenshot(path=pictures / "narrow.png", full_page=True)
    plain = open_page(browser, page_file, [], java_script_enabled=False)
    assert plain.locator("svg.lines path").first.is_visible()
    assert not said, said


def main():
    sync_playwright = browser_or_skip()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(os.environ.get("DSTRAIN_REPORT_PICTURES") or folder)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as made:
            made = pathlib.Path(made)
            runs = [make_run(made / f"run{i}", rate=1 + 0.1 * (i % 2), seed=i, name="NVIDIA H100" if i else HOSTILE) for i in range(10)]
            page = made / "report.html"
            started = time.monotonic()
            expect_success(run("report", *runs, "--no-predict", "--format", "html", "-o", page))
            assert time.monotonic() - started < 5
            assert page.stat().st_size <= 2 << 20, page.stat().st_size
            for chosen in (runs[:1], runs):
                expect_success(run("report", *chosen, "--no-predict", "--format", "html", "-o", page))
                report = json.loads(expect_success(run("report", *chosen, "--no-predict", "--json")))
                with sync_playwright() as playwright:
                    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                    check_page(browser, page, report, folder)
                    browser.close()


if __name__ == "__main__":
    main()
