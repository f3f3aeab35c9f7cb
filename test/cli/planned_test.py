"""Planned beside measured: of the runs in test/golden/measured, whose figures are those of recipes/benchmarks, memory is planned within 2 % and the step
within 10 %. A run that is outside says by how much ("known": planned over measured, less 1) and must not get worse. DSTRAIN_UPDATE_GOLDEN=1 writes "known"
anew. Runs in NAME.json are planned for machine NAME or, where there is a NAME.rates, by the rates in it, as `dstrain doctor --measure` wrote them there."""
import json
import os
import pathlib
import shutil
import tempfile

from support import run

FOLDER = pathlib.Path(__file__).parents[1] / "golden" / "measured"
LIMITS = {"memory": 0.02, "step": 0.10}
ROUNDING = 0.001  # of a deviation as it is written


def plans(entries, machine, environment, folder):
    """A plan for each entry; entries on as many ranks share a process, since each has to load LibTorch."""
    made, by_ranks = {}, {}
    for number, entry in enumerate(entries):
        settings = [word for setting in entry["overrides"] for word in ("--set", setting)]
        path = folder / f"{number}.yaml"
        shown = run("recipe", "show", f"recipes/{entry['recipe']}", *settings)
        assert shown.returncode == 0, shown.stderr
        path.write_text(shown.stdout)
        by_ranks.setdefault(entry["ranks"], []).append((number, path))
    for ranks, some in by_ranks.items():
        done = run("plan", *(path for _, path in some), "--ranks", ranks, "--machine", machine, "--json", env=environment)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        made |= zip((number for number, _ in some), found if len(some) > 1 else [found], strict=True)
    return [made[number] for number in range(len(entries))]


def deviations(entry, plan):
    found = {}
    # null: measured when offloaded states did not yet come in beside backward.
    if entry["step_s"] is not None:
        found["step"] = plan["step_s"] / entry["step_s"] - 1
    # null: measured when a step still kept other tensors, or gathered into slots of another size.
    if entry["allocated_gib"] is not None:
        found["memory"] = plan["memory"]["allocated_bytes"] / 2**30 / entry["allocated_gib"] - 1
    return found


def test_plans_are_near_what_was_measured():
    wrong = []
    for path in sorted(FOLDER.glob("*.json")):
        entries = json.loads(path.read_text())
        with tempfile.TemporaryDirectory() as config:
            environment, machine = os.environ | {"XDG_CONFIG_HOME": config}, path.stem
            rates = path.with_suffix(".rates")
            if rates.exists():
                machine = json.loads(rates.read_text())["machines"][0]["device"]
                os.mkdir(f"{config}/dstrain")
                shutil.copy(rates, f"{config}/dstrain/machine.json")
            found_of = list(map(deviations, entries, plans(entries, machine, environment, pathlib.Path(config))))
        for entry, found in zip(entries, found_of):
            known = entry.get("known", {})
            for what in found:
                limit = LIMITS[what]
                allowed = max(limit, abs(known.get(what, 0)) + ROUNDING)
                if abs(found[what]) > allowed:
                    wrong.append(f"{entry['recipe']} {entry['overrides']} on {entry['ranks']}: {what} {found[what]:+.1%}, allowed {allowed:.1%}")
            outside = {what: round(found[what], 4) for what in found if abs(found[what]) > LIMITS[what]}
            entry.pop("known", None)
            if outside:
                entry["known"] = outside
        if "DSTRAIN_UPDATE_GOLDEN" in os.environ:
            path.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in entries) + "\n]\n")
            wrong = []
    assert not wrong, "\n".join(wrong)


if __name__ == "__main__":
    test_plans_are_near_what_was_measured()
    print("test_plans_are_near_what_was_measured: ok")
