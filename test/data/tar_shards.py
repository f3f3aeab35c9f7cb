"""Tar shards beside tarfile as their writer, in ustar, GNU's form and pax: pixels and labels are those of the files, in the order of the
shards; where webdataset is installed, keys and order are its own. What is no such tar is named."""
import gzip
import io
import json
import pathlib
import sys
import tarfile
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
try:
    import numpy
    from PIL import Image
    from probe_set import Set, end_probe
except ImportError as missing:
    print(f"skipped: {missing}")
    raise SystemExit(77)
try:
    import webdataset
except ImportError:
    webdataset = None

draw = numpy.random.default_rng(5)
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def image(kind="png"):
    file = io.BytesIO()
    Image.fromarray(draw.integers(0, 256, (40, 48, 3), dtype=numpy.uint8)).save(file, {"jpg": "JPEG", "jpeg": "JPEG"}.get(kind, kind.upper()))
    return file.getvalue()


def write(path, members, form="ustar", mode="w", **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode, format=FORMATS[form], **more) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
            else:
                member.type, member.linkname = content
                tar.addfile(member)


def sample(key, label, kind="png", **more):
    return [(f"{key}.{kind}", image(kind)), (f"{key}.cls", str(label).encode()), *((f"{key}.{e}", c) for e, c in more.items())]


def as_files(root, shards):
    """The images of shards in folders of classes; {label: [bytes in the order of the shards]} is what the order is compared by."""
    count = 0
    for members in shards:
        found = dict(members)
        for name, content in members:
            stem, _, ending = name.rpartition(".")
            if ending in ("png", "jpg", "jpeg", "webp") and stem + ".cls" in found:
                place = root / "train" / f"{int(found[stem + '.cls']):03}" / f"{count:05}.{ending}"
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)
                count += 1
    (root / "test/000").mkdir(parents=True)
    (root / "test/000/0.png").write_bytes(image())


def check_forms(scratch):
    """Long names need what each form has for them; a folder comes before, other members are passed over."""
    for form in FORMATS:
        deep = "/".join(["a-folder-of-a-long-name"] * (4 if form == "ustar" else 12))
        shards = []
        for s in range(3):
            members = []
            for i in range(7):
                key = f"{deep}/{s}{i:04}" if i % 3 == 0 else f"{s}{i:04}"
                members += sample(key, (i + s) % 4, ("png", "jpg", "webp", "jpeg")[i % 4], txt=b"words", json=b"{}")
            members += [("README", b"text"), (".hidden.png", b"x"), ("late.seg.png", b"x")]
            shards.append(members)
        if form != "ustar":  # names beyond ASCII and beyond 256 bytes
            shards[0] += sample("\u00e9" * 150, 3)
        folder = scratch / form
        for s, members in enumerate(shards):
            write(folder / f"train-{s:06}.tar", [("some/", (tarfile.DIRTYPE, "")), *members], form)
        write(folder / "val-000000.tar", sample("x", 1) + sample("y", 3), form)
        write(folder / "test-000000.tar", sample("z", 0), form)
        as_files(scratch / f"{form}-files", shards)
        time.sleep(2.1)  # only then is the index remembered
        cache = scratch / f"{form}-cache"
        for _ in range(2):  # the second time by what is remembered
            tars = Set("webdataset", folder, cache)
            files = Set("images", scratch / f"{form}-files", cache)
            assert tars.head["samples"] == files.head["samples"] == 21 + (form != "ustar"), tars.head
            assert tars.head["planned"] == tars.head["samples"] and tars.head["classes"] == 4, tars.head
            # Folders come by class: the order inside a class is that of the shards.
            order = sorted(range(len(tars.labels)), key=lambda i: tars.labels[i])
            assert [tars.labels[i] for i in order] == files.labels and (tars.pixels[order] == files.pixels).all()
            assert "left out: 1 of further splits, the first is val-000000.tar" in tars.notes, tars.notes
        assert len(list(cache.glob("*.tar-index"))) >= 3
        assert Set("webdataset", folder, cache, "test").labels == [0]
        # By pattern, and one alone; the same name with other content is read again.
        assert Set("webdataset", folder / "train-{000001..000002}.tar", cache).labels == tars.labels[-14:]
        write(folder / "train-000002.tar", sample("new", 2), form)
        assert Set("webdataset", folder / "train-000002.tar", cache).labels == [2]
        if webdataset:
            listed = webdataset.WebDataset([str(folder / f"train-{s:06}.tar") for s in range(2)], shardshuffle=False)
            theirs = [int(one["cls"]) for one in listed if "cls" in one]
            assert Set("webdataset", folder / "train-{000000..000001}.tar", cache).labels == theirs, theirs


def check_labels(scratch):
    folder, cache = scratch / "labels", scratch / "labels_cache"
    write(folder / "train.tar", [member for i in range(4) for member in sample(i, f" {i}\n", json=json.dumps({"class": 3 - i}).encode())])
    assert Set("webdataset", folder, cache).labels == [0, 1, 2, 3]
    assert Set("webdataset", folder, cache, label="json.class").labels == [3, 2, 1, 0]
    refused = Set("webdataset", folder, cache, label="json.other", code=65).error
    assert "train.tar: 0.json: no field 'other'" in refused, refused
    refused = Set("webdataset", folder, cache, label="id", code=65).error
    assert "0.png has no 0.id beside it" in refused, refused


def check_wrong(scratch):
    cache = scratch / "wrong_cache"

    def refused(members, said, form="gnu", change=None, **more):
        folder = scratch / f"wrong{len(list(scratch.glob('wrong*')))}"
        write(folder / "train-0.tar", members, form, **more)
        if change:
            (folder / "train-0.tar").write_bytes(change((folder / "train-0.tar").read_bytes()))
        error = Set("webdataset", folder, cache, code=65).error
        assert said in error and "train-0.tar" in error, (said, error)

    good = sample("a", 0) + sample("b", 1)
    refused(good, "it is compressed by gzip", change=gzip.compress)
    refused(good, "it is compressed by xz", mode="w:xz")
    refused(good, "it is compressed by bzip2", mode="w:bz2")
    refused(good, "it is no tar", change=lambda tar: b"x" * 2048)
    refused(good, "a header is damaged (byte ", change=lambda tar: tar[:-10240].replace(b"b.png", b"c.png", 1) + tar[-10240:])
    refused(good, "a.png is cut off", change=lambda tar: tar[:2000])
    refused(good, "it ends without a block of zeros, so it is cut off", change=lambda tar: tar[:512 + -(-len(good[0][1]) // 512) * 512])
    refused([("a.png", (tarfile.SYMTYPE, "b.png"))], "a.png is a link")
    refused([("a.png", (tarfile.LNKTYPE, "b.png"))], "a.png is a link")
    refused([("a.png", (tarfile.FIFOTYPE, ""))], "a.png is a device or a pipe")
    refused([("a.png", (tarfile.GNUTYPE_SPARSE, ""))], "a.png is a sparse file")
    refused([("a.png", image()), ("a.jpg", image("jpg")), ("a.cls", b"0")], "sample a has both a.png and a.jpg")
    refused(good + good, "sample a has both a.png and a.png")
    refused([("a.png", image())], "a.png has no a.cls beside it")
    refused([("a.png", image()), ("a.cls", b"cat")], "a.cls: 'cat' is no class")
    refused([("a.png", image()), ("a.cls", b"-1")], "a.cls: -1 is no class")
    refused([("a.txt", b"words")], "holds no image")
    refused([], "holds no image")

    # Sparse files of GNU tar in pax form.
    member = tarfile.TarInfo("a.png")
    member.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.name": "a.png"}
    folder = scratch / "sparse"
    folder.mkdir()
    with tarfile.open(folder / "train-0.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(member, io.BytesIO(b""))
    assert "a.png is a sparse file" in Set("webdataset", folder, cache, code=65).error

    # An image that is damaged is named when it is read.
    folder = scratch / "damaged"
    write(folder / "train-0.tar", sample("a", 0) + [("b.png", b"no image"), ("b.cls", b"1")])
    assert "train-0.tar: b.png: neither JPEG, PNG nor WebP" in Set("webdataset", folder, cache, code=65).error

    assert "is not there; expected train-000000.tar" in Set("webdataset", scratch / "nowhere", cache, code=65).error
    assert "holds no tar" in Set("webdataset", scratch / "wrong_cache", cache, code=65).error
    assert "has no tar for evaluation" in Set("webdataset", folder, cache, "test", code=65).error
    assert "train-1.tar" in Set("webdataset", folder / "train-{0..1}.tar", cache, code=65).error
    assert "a range that does not go up" in Set("webdataset", folder / "train-{1..0}.tar", cache, code=64).error
    write(folder / "val-0.tar", sample("a", 7))
    refusal = Set("webdataset", folder, cache, "test", code=65).error
    assert "val-0.tar: a.png: its class is 7, those of training are 0 to 1" in refusal, refusal


with tempfile.TemporaryDirectory() as folder:
    check_forms(pathlib.Path(folder))
    check_labels(pathlib.Path(folder))
    check_wrong(pathlib.Path(folder))
end_probe()
