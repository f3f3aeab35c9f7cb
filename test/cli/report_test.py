"""dstrain report: time, size, the page's numbers are those of --json. In a browser: no request, no console message, keys, zoom, dark, print, narrow."""
import html.parser
import json
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time

from support import ROOT, expect_success, run

BROWSERS = ["chromium", "chromium-browser", "google-chrome"]
WIDTHS = (1280, 800)
KERNELS = ["void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul> >(int, "
           "at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)",
           "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x256_32x3_tn_align8>(cutlass_80_tensorop_bf16_s16816gemm_bf16_128x256_32x3_tn_align8::Params)",
           "dstrain::(anonymous namespace)::rms_norm_kernel(dstrain::RmsNorm)"]
HOSTILE = "<img src=x onerror=console.log(1)>\"'&\u202e"


def browser_or_skip():
    """What drives a browser, and where the browser is."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as missing:
        print(f"skipped: {missing} (scripts/setup --tests)")
        sys.exit(77)
    if path is None:
        print(f"skipped: none of {', '.join(BROWSERS)} is there (scripts/setup --tests)")
        sys.exit(77)
    return sync_playwright, path


def write_lines(path, objects):
    path.write_text("".join(json.dumps(o) + "\n" for o in objects))


def write_trace(folder, rank, ranks, run, draw, layers=100):
    """A step on a GPU: a gather, a backward and a reduction for each layer, each with a kernel, its launch and a row of its lane."""
    events = [{"ph": "M", "name": "thread_name", "pid": 1000, "tid": t, "ts": 0, "args": {"name": lane}}
              for t, lane in enumerate(["compute", "gather", "reduce"])]
    slice = lambda category, name, tid, start, length, **args: events.append(
        {"ph": "X", "cat": category, "name": name, "pid": 1000 if category.startswith("dstrain") else 1, "tid": tid, "ts": start, "dur": length, "args": args})
    slice("dstrain_step", "ProfilerStep#5", 9, 1000, 100000, step=5)
    slice("user_annotation", "ProfilerStep#5", 8, 900, layers * 4000, step=5)
    actions, at = [], 1000.0
    for layer in range(layers):
        label = f"layer.{layer}" if layer else HOSTILE
        for lane, kind, offset, length in [(1, "gather", 0, 900), (0, "backward", 1000, 2600 + 300 * (rank == 2)), (2, "reduce", 3500, 1400)]:
            index, length = len(actions), length * draw.uniform(0.8, 1.1)
            if lane == 2:  # it ends on all ranks together, and rank 2 comes late
                offset, length = 3500 + 400 * (rank == 2), 1400 - 400 * (rank == 2)
            actions.append({"name": f"{kind}({label})", "kind": kind, "lane": ["compute", "gather", "reduce"][lane], "phase": "backward", "block": label,
                            "after": [index - 1] if lane != 1 else []})
            group = {} if lane == 0 else {"Collective name": ["", "all_gather", "reduce_scatter"][lane], "In msg nelems": 1 << 20, "Out msg nelems": 1 << 20,
                                          "dtype": "BFloat16", "Group size": ranks, "Process Group Name": "shard", "Process Group Ranks": str(list(range(ranks))),
                                          "Seq": index}
            slice("cuda_runtime", "cudaLaunchKernel", 8, at + offset - 20, 5, correlation=index + 1)
            slice("kernel", f"{kind}_kernel<{HOSTILE}>" + "x" * 300, 7 + lane, at + offset, length, device=0, stream=7 + lane, correlation=index + 1, step=5,
                  action=index, **group)
            slice("dstrain_lane", actions[-1]["name"], lane, at + offset, length, action=index, step=5)
        add_copies(slice, at, draw)
        for kernel in KERNELS:
            slice("kernel", kernel, 7, at + 3600 + 50 * KERNELS.index(kernel), draw.lognormvariate(3, 0.5), device=0, stream=7, step=5)
        events.append({"ph": "C", "name": "memory allocated", "pid": 1000, "tid": 0, "ts": at + 100, "args": {"value": (40 << 30) + layer}})
        at += 4000
    ours = {"run": run, "host": "n1", "program": "abc", "incomplete": ""}
    (folder / f"rank{rank}_trace.json").write_text(json.dumps({"distributedInfo": {"rank": rank, "world_size": ranks}, "dstrain": ours, "traceEvents": events}))
    (folder / f"rank{rank}_actions.json").write_text(json.dumps({"actions": actions, "memory": {"planned": 43 << 30}}))


def make_run(path, rate=1.0, ranks=4, steps=400, seed=1, name="GPU"):
    """A run of a GPU with every file, so that the page has all its charts."""
    draw = random.Random(seed)
    (path / "ranks").mkdir(parents=True)
    (path / "traces").mkdir()
    lines = []
    for step in range(1, steps + 1):
        step_s = 0.1 / rate * draw.uniform(0.98, 1.03)
        lines.append({"kind": "step", "step": step, "loss": 2.2 / (1 + step / 150) + draw.gauss(0, 0.02), "samples_per_s": 64 / step_s,
                      "tokens_per_s": 32768 / step_s, "mfu": 0.41 * rate, "step_s": step_s, "memory_bytes": 41 << 30, "memory_reserved_bytes": 44 << 30})
        if step % 100 == 0:
            lines.append({"kind": "evaluation", "step": step, "epoch": step / 100, "samples": 1000, "loss": 2.1 / (1 + step / 150), "accuracy": 0.5, "seconds": 1.0})
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
        write_trace(path / "traces", rank, ranks, path.name, draw)
    csv = ["timestamp, index, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%], utilization.memory [%], temperature.gpu, "
           "power.draw [W], clocks.sm [MHz]"]
    for second in range(60):
        for gpu in range(ranks):
            csv.append(f"2025/05/22 09:42:{second:02}.587, {gpu}, {name}, {41000 + second}, 81920, {90 + gpu}, 40, {60 + second // 10}, 640.5, 1700")
    (path / "gpu.csv").write_text("\n".join(csv) + "\n")
    (path / "memory-n2.csv").write_text("\n".join(line.rsplit(", ", 5)[0] for line in csv) + "\n")
    for host in ("", "-n2"):
        (path / f"cpu{host}.txt").write_text("# Elapsed time   CPU (%)     Real (MB)   Virtual (MB)\n" + "".join(
            f"{second:12.3f} {draw.uniform(380, 400):12.3f} {4000 + second:12.3f} {9000.0:12.3f}\n" for second in range(3600)))
    if seed % 2:  # over several hosts there is no critical path without a merged trace
        write_lines(path / "clocks.jsonl", [{"t_ns": t * 10**9, "host": "n2", "offset_ns": -1200 * t, "bound_ns": 80000} for t in range(1, 9)])
    return path


def figure(report, place):
    for key in place.split("."):
        report = report[int(key)] if isinstance(report, list) else report[key]
    return report


class Cells(html.parser.HTMLParser):
    """Numbers of a page that name their place in the JSON, and its headings."""

    def __init__(self, text):
        super().__init__()
        self.cells, self.headings, self.heading = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if "data-figure" in attributes:
            self.cells.append((attributes["data-figure"], float(attributes["data-value"])))
        self.heading = tag == "h2"

    def handle_data(self, text):
        if self.heading:
            self.headings.append(text)
            self.heading = False


def add_copies(slice, at, draw):
    for kind, source, target, rate in (("HtoD", "Pinned", "Device", 50e3), ("DtoD", "Device", "Device", 1200e3)):
        bytes = 1 << 24
        slice("gpu_memcpy", f"Memcpy {kind} ({source} -> {target})", 20, at, bytes / rate * draw.uniform(0.9, 1.2), device=0, stream=20, bytes=bytes, step=5)


def check_numbers(page_file, report):
    page = Cells(page_file.read_text())
    assert len(page.cells) > 40, len(page.cells)
    for place, value in page.cells:
        assert abs(value - figure(report, place)) <= 1e-9 * abs(value), (place, value)
    for title in ("Traced steps", "Hosts", "Evaluations"):
        assert len([h for h in page.headings if h.split(":")[0] == title]) == len(report["runs"]), page.headings
    places = [place for place, _ in page.cells if place.startswith("runs.0.")]
    for part in ("traced.ranks.3.breakdown.compute_ns", "traced.kernels.0.sum_ns", "traced.kernels.0.median_ns", "traced.kernels.0.p95_ns",
                 "traced.ranks.0.copies.0.median_bytes_per_s", "evaluations.0.training_loss", "evaluations.3.loss", "memory_reserved",
                 "traced.collectives.rows.0.bus_bytes_per_s", "traced.path_kinds.0.ns",
                 "traced.memory_steps.0.planned_bytes", "traced.collectives.stragglers.0.blame_ns", "hosts.1.gpu_peak_mib"):
        assert "runs.0." + part in places, (part, places)
    stragglers = report["runs"][0]["traced"]["collectives"]["stragglers"]
    assert stragglers[0]["rank"] == 2 and stragglers[0]["cause"] == "compute", stragglers
    assert report["runs"][0]["traced"]["critical_path"] is not None
    if len(report["runs"]) > 1:
        assert report["runs"][1]["traced"]["critical_path"] is None
        assert report["runs"][1]["clocks"][0]["offset_ns"] == -9600


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
    assert page.locator("svg.chart").count() >= 8
    assert page.locator("svg.chart:not(:has(> title)), svg.chart:not(:has(> desc))").count() == 0
    assert page.locator("img").count() == 0
    if len(report["runs"]) > 1:
        assert not said, said
        return
    page.screenshot(path=pictures / "light.png", full_page=True)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.screenshot(path=pictures / f"{width}.png", full_page=True)
        cut = page.evaluate("[...document.querySelectorAll('.wide')].filter(w => w.scrollWidth > w.clientWidth + 1).map(w => w.innerText.slice(0, 80))")
        assert not cut, (width, cut)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.set_viewport_size({"width": 1000, "height": 900})
    names = [cell.inner_text() for cell in page.locator("td[title]").all()]
    assert "rms_norm_kernel" in names and "Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x256_32x3_tn_align8>" in names, names
    assert page.locator("svg.durations rect").count() > 50

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
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(os.environ.get("DSTRAIN_REPORT_PICTURES") or folder)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as made:
            made = pathlib.Path(made)
            runs = [make_run(made / f"run{i}", rate=1 + 0.1 * (i % 2), seed=i, name="NVIDIA H100" if i else HOSTILE) for i in range(10)]
            pages = []
            for chosen in (runs[:1], runs):
                page = made / f"report{len(chosen)}.html"
                started = time.monotonic()
                expect_success(run("report", *chosen, "--no-predict", "--format", "html", "-o", page))
                assert time.monotonic() - started < 5
                assert page.stat().st_size <= 2 << 20, page.stat().st_size
                report = json.loads(expect_success(run("report", *chosen, "--no-predict", "--json")))
                check_numbers(page, report)
                pages.append((page, report))
            sync_playwright, path = browser_or_skip()
            with sync_playwright() as playwright:
                # Chromium starts for root, as which CI runs, without its sandbox alone.
                browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
                for page, report in pages:
                    check_page(browser, page, report, folder)
                browser.close()


if __name__ == "__main__":
    main()
