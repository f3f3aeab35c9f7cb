"""Data sets of images in Python's and the Hub's forms: pixels, labels and names are those of the binary version and of files, hostile
pickles run nothing, a subset takes from each class in turn."""
import os
import pathlib
import pickle
import struct
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
try:
    import numpy
    from PIL import Image
    from parquet_files import classes_of, image_bytes, write_parquet
    from probe_set import Set, end_probe
except ImportError as missing:
    print(f"skipped: {missing}")
    raise SystemExit(77)

draw = numpy.random.default_rng(3)


class Python2(pickle._Pickler):
    """Texts and bytes as Python 2 wrote both, which the published files are from."""
    dispatch = dict(pickle._Pickler.dispatch)

    def save_word(self, word):
        word = word.encode() if isinstance(word, str) else word
        self.write(b"U" + bytes([len(word)]) + word if len(word) < 256 else b"T" + struct.pack("<i", len(word)) + word)
        self.memoize(word)

    dispatch[bytes] = dispatch[str] = save_word


def dump(path, value, python2=True):
    with open(path, "wb") as file:
        (Python2 if python2 else pickle.Pickler)(file, protocol=2).dump(value)


def write_hundred(root, python2):
    """The same images in three forms; returns pixels [N, 3, 32, 32] and both labels by split."""
    fine, coarse = [f"fine {i}" for i in range(100)], [f"coarse {i}" for i in range(20)]
    for form in ("binary", "python", "parquet/cifar100"):
        (root / form).mkdir(parents=True)
    (root / "binary/fine_label_names.txt").write_text("\n".join(fine) + "\n")
    (root / "binary/coarse_label_names.txt").write_text("\n".join(coarse) + "\n")
    dump(root / "python/meta", {b"fine_label_names": [n.encode() for n in fine], b"coarse_label_names": [n.encode() for n in coarse]}, python2)
    for split, count in (("train", 150), ("test", 40)):
        data = draw.integers(0, 256, (count, 3072), dtype=numpy.uint8)
        labels = draw.integers(0, 100, count).tolist()
        large = [label // 5 for label in labels]
        (root / f"binary/{split}.bin").write_bytes(b"".join(bytes([large[i], labels[i]]) + data[i].tobytes() for i in range(count)))
        dump(root / "python" / split, {b"filenames": [f"{i}.png".encode() for i in range(count)], b"batch_label": b"one of one",
                                       b"fine_labels": labels, b"coarse_labels": large, b"data": data}, python2)
        files = [image_bytes(data[i].reshape(3, 32, 32).transpose(1, 2, 0)) for i in range(count)]
        columns = {"img": files, "fine_label": labels, "coarse_label": large}
        write_parquet(root / "parquet/cifar100", split, columns, {"fine_label": fine, "coarse_label": coarse}, parts=3 if split == "train" else 1)


def check_hundred(scratch, python2):
    root, cache = scratch / f"hundred{python2}", scratch / f"cache{python2}"
    write_hundred(root, python2)
    for split in ("train", "test"):
        for label, classes in (("-", 100), ("fine_label", 100), ("coarse_label", 20)):
            binary = Set("cifar100", root / "binary", cache, split, label)
            assert binary.head["classes"] == classes and len(binary.head["names"]) == classes and max(binary.labels) < classes
            for form in ("python", "parquet", "parquet/cifar100"):
                Set("cifar100", root / form, cache, split, label).check_same(binary)
    assert Set("cifar100", root / "python", cache).head["planned"] == Set("cifar100", root / "parquet", cache).head["planned"] == 150
    # Made once: two kinds of labels, two splits, two forms (the folder above names the same files).
    assert len(list(cache.rglob("*.pixels"))) == 8
    assert "packed" not in Set("cifar100", root / "python", cache).notes
    # As photographs of any size, too.
    Set("images", root / "parquet", cache, label="fine_label").check_same(Set("cifar100", root / "binary", cache))
    assert "no 'other'" in Set("cifar100", root / "binary", cache, label="other", code=64).error


def check_ten(scratch):
    root, cache, labels = scratch / "ten", scratch / "ten_cache", {}
    for form in ("binary", "python"):
        (root / form).mkdir(parents=True)
    names = [f"name {i}" for i in range(10)]
    (root / "binary/batches.meta.txt").write_text("\n".join(names) + "\n\n")
    dump(root / "python/batches.meta", {b"label_names": [name.encode() for name in names], b"num_vis": 3072})
    for file in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        data = draw.integers(0, 256, (7, 3072), dtype=numpy.uint8)
        labels[file] = draw.integers(0, 10, 7).tolist()
        (root / f"binary/{file}.bin").write_bytes(b"".join(bytes([labels[file][i]]) + data[i].tobytes() for i in range(7)))
        dump(root / "python" / file, {b"data": data, b"labels": labels[file]})
    for split in ("train", "test"):
        Set("cifar10", root / "python", cache, split).check_same(Set("cifar10", root / "binary", cache, split))
    assert Set("cifar10", root / "python", cache).labels == [label for i in range(1, 6) for label in labels[f"data_batch_{i}"]]


class Command:
    def __init__(self, text):
        self.text = text

    def __reduce__(self):
        return os.system, (self.text,)


def check_hostile(scratch):
    data = draw.integers(0, 256, (4, 3072), dtype=numpy.uint8)
    good = {b"data": data, b"fine_labels": [0, 1, 2, 3], b"coarse_labels": [0, 0, 0, 0]}
    marker, number = scratch / "ran", 0

    def refused(content, said):
        nonlocal number
        number += 1
        folder = scratch / f"hostile{number}"
        folder.mkdir()
        if isinstance(content, bytes):
            (folder / "train").write_bytes(content)
        else:
            dump(folder / "train", content, python2=False)
        error = Set("cifar100", folder, scratch / "hostile", code=65).error
        assert said in error and str(folder / "train") in error, error

    run = Command(f"touch {marker}")
    refused(run, "'data' is no array")
    refused(good | {b"data": run}, "'data' is no array")
    refused(good | {b"fine_labels": run}, "'fine_labels' is no list of 4 numbers")
    refused({b"fine_labels": [0]}, "'data' is no array")
    refused(good | {b"data": data[:, :3071]}, "'data' is no array")
    refused(good | {b"data": data.astype(numpy.int32)}, "'data' is no array")
    refused(good | {b"data": numpy.asfortranarray(data)}, "'data' is no array")
    refused(good | {b"data": data[:0]}, "'data' is no array")
    refused(good | {b"fine_labels": [0, 1, 2]}, "is no list of 4 numbers")
    refused(good | {b"fine_labels": [100, 1.5, -1, "x"]}, "none of its 4 images can be read")
    whole = pickle.dumps(good, protocol=2)
    for size in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        refused(whole[:size], "")
    refused(b"\x80\x02cposix\nsystem\nX\x05\x00\x00\x00touch\x85R.", "'data' is no array")
    assert not marker.exists(), "a pickle ran a command"
    # One label that is none is left out and named.
    folder = scratch / "one"
    folder.mkdir()
    dump(folder / "train", good | {b"fine_labels": [5, 100, 7, 8]})
    some = Set("cifar100", folder, scratch / "hostile")
    assert some.labels == [5, 7, 8] and "record 1: its label is 100" in some.notes, some.notes


def check_food(scratch):
    """JPEG files of the Hub are those of the archive, byte for byte."""
    names, cache = ["pie", "apple", "soup"], scratch / "food_cache"
    archive, hub = scratch / "food-101", scratch / "food"
    (archive / "meta").mkdir(parents=True)
    (archive / "meta/classes.txt").write_text("\n".join(names) + "\n")
    for split, part, count in (("train", "train", 9), ("test", "validation", 4)):
        files, labels, lines = [], [], []
        for i in range(count):
            label = int(draw.integers(0, 3))
            noise = Image.fromarray(draw.integers(0, 256, (9, 9, 3), dtype=numpy.uint8)).resize((50 + i, 60), Image.BICUBIC)
            files.append(image_bytes(noise, "JPEG"))
            labels.append(label)
            lines.append(f"{names[label]}/{split}{i}")
            target = archive / f"images/{lines[-1]}.jpg"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(files[-1])
        (archive / f"meta/{split}.txt").write_text("\n".join(lines) + "\n")
        write_parquet(hub / "data", part, {"image": files, "label": labels}, {"label": names}, parts=2)
    for split in ("train", "test"):
        Set("food101", hub, cache, split).check_same(Set("food101", archive, cache, split))
    assert len(list(cache.rglob("*.files"))) == 2
    # Bytes as they are: another size of the model needs no other file.
    Set("food101", hub, cache, side=16).check_same(Set("food101", archive, cache, side=16))
    assert len(list(cache.rglob("*.files"))) == 2
    assert "names a column of parquet files" in Set("food101", archive, cache, label="label", code=64).error


def check_wrong_parquet(scratch):
    names, cache = ["a", "b"], scratch / "wrong_cache"
    picture = image_bytes(draw.integers(0, 256, (32, 32, 3), dtype=numpy.uint8))

    def folder(name, columns, classes=None, **more):
        write_parquet(scratch / name, "train", columns, classes or {}, **more)
        return scratch / name

    good = {"image": [picture] * 4, "label": [0, 1, 0, 1]}
    one = Set("images", folder("rows", good | {"image": [picture, None, b"x", picture], "label": [0, 1, 0, 7]}, {"label": names}), cache)
    assert one.labels == [0] and "row 2: it holds no image" in one.notes and "row 3: neither JPEG" in one.notes, one.notes
    assert "row 4: its label is 7, outside 0..1" in one.notes, one.notes
    assert Set("images", folder("no_names", good), cache).head["classes"] == 2
    two = folder("two_labels", good | {"other": [0, 0, 1, 1]}, {"label": names, "other": names})
    assert "several columns hold classes: label, other" in Set("images", two, cache, code=64).error
    assert Set("images", two, cache, label="other").labels == [0, 0, 1, 1]
    assert "no column 'nope' of whole numbers" in Set("images", two, cache, label="nope", code=64).error
    assert "no column holds images" in Set("images", folder("no_image", {"label": [0]}), cache, code=65).error
    assert "several columns hold images" in Set("images", folder("images2", good | {"mask": good["image"]}, {"label": names}), cache, code=65).error
    assert "no column holds classes" in Set("images", folder("no_label", {"image": [picture]}), cache, code=64).error
    part = folder("part", good, {"label": names}, parts=2)
    (part / "train-00001-of-00002.parquet").unlink()
    assert "one of 2 parts, of which 1 are there" in Set("images", part, cache, code=65).error
    assert "but none of test" in Set("images", two, cache, split="test", label="other", code=65).error
    cut = folder("cut", good, {"label": names}) / "train-00000-of-00001.parquet"
    cut.write_bytes(cut.read_bytes()[:-20])
    assert "not a parquet file" in Set("images", cut.parent, cache, code=65).error
    wide = folder("wide", {"img": [image_bytes(draw.integers(0, 256, (32, 40, 3), dtype=numpy.uint8)), picture], "label": [0, 1]}, {"label": classes_of(10)})
    ten = Set("cifar10", wide, cache)
    assert ten.labels == [1] and "it is 40 x 32 pixels, all others 32 x 32" in ten.notes, ten.notes
    assert "column label has 2 classes, CIFAR-10 has 10" in Set("cifar10", scratch / "rows", cache, code=65).error


def check_subset(scratch):
    root, cache = scratch / "subset", scratch / "subset_cache"
    root.mkdir()
    labels = draw.permutation(numpy.repeat(numpy.arange(100), 5)).tolist()
    for split in ("train", "test"):
        data = draw.integers(0, 256, (500, 3072), dtype=numpy.uint8)
        (root / f"{split}.bin").write_bytes(b"".join(bytes([0, labels[i]]) + data[i].tobytes() for i in range(500)))
    for split in ("train", "test"):
        whole = Set("cifar100", root, cache, split)
        one_each = Set("cifar100", root, cache, split, subset=100)
        assert sorted(one_each.labels) == list(range(100)) and one_each.labels != list(range(100))
        assert sorted(Set("cifar100", root, cache, split, subset=200).labels) == sorted(2 * list(range(100)))
        # A part of a larger one, and real samples; the seed chooses.
        half = Set("cifar100", root, cache, split, subset=50)
        assert half.labels == one_each.labels[:50] and (half.pixels == one_each.pixels[:50]).all() and len(set(half.labels)) == 50
        known = {(label, row.tobytes()) for label, row in zip(whole.labels, whole.pixels)}
        assert {(label, row.tobytes()) for label, row in zip(one_each.labels, one_each.pixels)} <= known
        assert Set("cifar100", root, cache, split, subset=50, seed=1).labels != half.labels
    assert Set("cifar100", root, cache, subset=50).head["planned"] == 50
    more = Set("cifar100", root, cache, subset=501)
    assert more.head["samples"] == 500 and "500 images, fewer than data.subset (501)" in more.notes
    # Where a class has no more, the others go on.
    few = scratch / "few"
    few.mkdir()
    few_labels = [0] * 10 + [1] * 2
    (few / "train.bin").write_bytes(b"".join(bytes([0, label]) + bytes(3072) for label in few_labels))
    assert sorted(Set("cifar100", few, cache, subset=8).labels) == [0] * 6 + [1] * 2


with tempfile.TemporaryDirectory() as folder:
    scratch = pathlib.Path(folder)
    check_hundred(scratch, True)
    check_hundred(scratch, False)
    check_ten(scratch)
    check_hostile(scratch)
    check_food(scratch)
    check_wrong_parquet(scratch)
    check_subset(scratch)
end_probe()
print("image sets: ok")
