"""The notebook of recipes/guides runs from its first cell to its last with the module that the wheel brings."""
import contextlib
import io
import json
import os
import sys
import tempfile

from support import DSTRAIN, ROOT

sys.path.insert(0, str(ROOT / "scripts/packaging"))
os.environ["DSTRAIN"] = DSTRAIN
notebook = json.loads((ROOT / "recipes/guides/notebook.ipynb").read_text())
assert notebook["nbformat"] == 4 and not any(cell.get("outputs") for cell in notebook["cells"]), "a notebook without outputs"
names, shown = {}, io.StringIO()
with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.redirect_stdout(shown):
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    text = shown.getvalue()
    accuracy = names["lora"].metrics("kind", "accuracy")
    accuracy = accuracy.to_dict("records") if hasattr(accuracy, "to_dict") else accuracy
    assert "test accuracy" in text and "16.4k of them trained" in text, text
    assert [row["accuracy"] for row in accuracy if row["kind"] == "evaluation"][-1] > 0.7, accuracy
    assert "ZeRO 1: " in text and "ZeRO 3: " in text and "parallel.zero.stage=3" in text, text
    assert len(names["dstrain"].runs()) == 4, names["dstrain"].runs()
print("notebook: ok")
