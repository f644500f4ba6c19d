"""HDF5 files: one dataset, or a group whose datasets are columns, as `hpcreduce.stats.arrays` takes them.

A dataset of one dimension without fields is one column, called by the last part of its path.

Files are opened without locks, so that those in folders that cannot be written, and on file systems without locks, can
be read; nothing has to be set for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hpcreduce.stats import arrays
from hpcreduce.stats.arrays import Table
from hpcreduce.stats.reading import Found, ReadOptions, SourceError


def _h5py() -> Any:
    try:
        import h5py
    except ImportError:
        raise SourceError("reading HDF5 needs the package h5py: pip install 'hpcreduce[stats]'") from None
    return h5py


def inspect(path: str, options: ReadOptions) -> Found:
    """Look for the dataset in a file."""
    h5py = _h5py()
    with h5py.File(path, "r", locking=False) as file:
        listed: list[str] = []
        file.visititems(lambda name, item: listed.append(f"/{name}") if isinstance(item, h5py.Dataset) else None)
        if not listed:
            raise SourceError("holds no dataset")
        names = ", ".join(listed[:20]) + (f" and {len(listed) - 20} more" if len(listed) > 20 else "")
        if options.dataset is None and len(listed) > 1:
            raise SourceError(f"holds {len(listed)} datasets; choose one, or a group, with --dataset: {names}")
        wanted = listed[0] if options.dataset is None else options.dataset
        item = file.get(wanted)
        if item is None:
            raise SourceError(f"has no dataset {wanted}; it has {names}")
        if isinstance(item, h5py.Group):
            datasets = {name: child for name, child in item.items() if isinstance(child, h5py.Dataset)}
        else:
            datasets = {"": item}
        if not datasets:
            raise SourceError(f"the group {wanted} has no datasets; the file has {names}")
        tables = [_table(name, dataset) for name, dataset in datasets.items()]
        grain = max((dataset.chunks or (1,))[0] for dataset in datasets.values())
    return arrays.arrange(path, "HDF5", tables, options, True, grain)._replace(layout=(wanted, tuple(tables)))


def _table(name: str, dataset: Any) -> Table:
    if dataset.shape is None:
        raise SourceError(f"the dataset {dataset.name} is empty, without even a shape")
    text = _h5py().check_string_dtype(dataset.dtype)
    dtype = np.dtype("U1") if text and text.length is None else dataset.dtype
    lone = not dtype.names and len(dataset.shape) < 2
    prefix = name or (dataset.name.rsplit("/", 1)[1] if lone else "")
    return Table(name, dataset.shape, dtype, arrays.columns(prefix, dataset.shape, dtype))


def read(
    found: Found, place: tuple[int, int], names: Sequence[str], options: ReadOptions
) -> Iterator[tuple[int, dict[str, Any], int]]:
    """Read a range of rows: yield rows, columns and bytes read."""
    wanted, tables = found.layout
    used = [table for table in tables if set(names).intersection(table.columns)]
    width = max(1, sum(table.dtype.itemsize * int(np.prod(table.shape[1:], dtype=object)) for table in used))
    step = max(1, options.block // width)
    step = max(step // found.grain, 1) * found.grain
    with _h5py().File(found.where, "r", locking=False) as file:
        sources = [(table, file[f"{wanted}/{table.member}" if table.member else wanted]) for table in used]
        for start in range(*place, step):
            stop = min(start + step, place[1])
            columns: dict[str, Any] = {}
            for table, dataset in sources:
                if table.dtype.kind == "U":
                    dataset = dataset.asstr("utf-8")
                block = dataset[start:stop] if table.shape else np.atleast_1d(dataset[()])
                columns |= {name: arrays.pick(block, part) for name, part in table.columns.items() if name in names}
            yield stop - start, columns, width * (stop - start)
