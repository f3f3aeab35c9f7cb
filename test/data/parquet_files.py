"""Parquet files of images as the library `datasets` writes them: by it where it is installed, else by pyarrow with the same schema."""
import io
import json
import pathlib

import pyarrow
import pyarrow.parquet
from PIL import Image

try:
    import datasets
except ImportError:
    datasets = None


def image_bytes(picture, form="PNG"):
    """The file of an array [height, width, 3] or of an image."""
    file = io.BytesIO()
    (picture if isinstance(picture, Image.Image) else Image.fromarray(picture)).save(file, form)
    return file.getvalue()


def classes_of(count):
    return [f"class {i}" for i in range(count)]


def is_image(column):
    return all(value is None or isinstance(value, bytes) for value in column)


def by_datasets(columns, classes):
    features = {name: datasets.Image() if is_image(column) else datasets.ClassLabel(names=classes[name]) if name in classes else datasets.Value("int64")
                for name, column in columns.items()}
    rows = {name: [None if value is None else dict(bytes=value, path=None) for value in column] if is_image(column) else column
            for name, column in columns.items()}
    return datasets.Dataset.from_dict(rows, features=datasets.Features(features)).data.table


def by_pyarrow(columns, classes):
    file = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    arrays, features = {}, {}
    for name, column in columns.items():
        if is_image(column):
            arrays[name] = pyarrow.array([None if value is None else dict(bytes=value, path=f"{i}.png") for i, value in enumerate(column)], file)
            features[name] = dict(_type="Image")
        else:
            arrays[name] = pyarrow.array(column, pyarrow.int64())
            features[name] = dict(names=classes[name], _type="ClassLabel") if name in classes else dict(dtype="int64", _type="Value")
    table = pyarrow.table(arrays)
    return table.replace_schema_metadata({"huggingface": json.dumps(dict(info=dict(features=features)))})


def write_parquet(folder, split, columns, classes, parts=1):
    """Columns by name, of files (bytes) and of numbers; `classes`: names of those that are classes. Parts of SPLIT-00000-of-0000N.parquet."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    table = (by_datasets if datasets and all(max(columns[name], default=0) < len(classes[name]) for name in classes) else by_pyarrow)(columns, classes)
    for part in range(parts):
        begin, end = table.num_rows * part // parts, table.num_rows * (part + 1) // parts
        pyarrow.parquet.write_table(table.slice(begin, end - begin), folder / f"{split}-{part:05}-of-{parts:05}.parquet", row_group_size=7)
