"""How many arrays are laid out, packed and made into results, without MPI."""

import numpy as np
import pytest

import hpcreduce
from hpcreduce.runtime import lists
from hpcreduce.runtime.operations import OPERATIONS
from hpcreduce.runtime.parts import BLOCKS, LISTED, arrange, describe, finish, make_pieces, pack, way

SHAPES = [(3,), (), (2, 2), (0,), (3,), (1, 0, 2), (2, 2), (5,)]


def arrays_of(dtypes, number):
    """Distinct whole numbers in arrays of these dtypes in turn."""
    return [
        (np.arange(np.prod(shape, dtype=int)).reshape(shape) + 10 * index).astype(dtypes[index % len(dtypes)])
        for index in range(number)
        for shape in [SHAPES[index % len(SHAPES)]]
    ]


def laid_out(arrays, ops):
    shapes, dtypes = [array.shape for array in arrays], [array.dtype for array in arrays]
    return arrange(None, shapes, dtypes, [way(ops[index % len(ops)]) for index in range(len(arrays))])


@pytest.mark.parametrize("dtypes", [["f4"], ["f4", "f2"], ["?", "i8", ">i8"], ["M8[s]", "i2", "f8", "M8[D]"]])
def test_every_array_lies_where_its_view_is(dtypes):
    arrays = arrays_of(dtypes, 40)
    layout = laid_out(arrays, ["max"])
    seen = []
    for part in layout.parts:
        flat = pack(part, arrays)
        assert flat.shape == (part.length,) and flat.dtype == part.dtype and flat.flags.writeable and flat.flags.aligned
        pieces = make_pieces(part, flat)
        finish(part, flat, pieces, 3)
        for index, view in zip(part.members, part.views(pieces), strict=True):
            assert view.shape == arrays[index].shape and view.dtype == layout.results[index]
            assert (view == arrays[index]).all()
        seen += part.members
    assert sorted(seen) == list(range(len(arrays)))


def test_results_of_one_dtype_are_views_of_the_buffer():
    arrays = arrays_of(["f4", "f2"], 16)
    (part,) = laid_out(arrays, ["mean", "mean", "sum", "sum"]).parts
    flat = pack(part, arrays)
    pieces = make_pieces(part, flat)
    finish(part, flat, pieces, 4)
    for index, view in zip(part.members, part.views(pieces), strict=True):
        assert np.shares_memory(view, flat) == (index % 2 == 0 and view.size > 0)
        assert (view == arrays[index] / (4 if index % 4 < 2 else 1)).all()


def parts_of(dtypes, ops):
    return {(part.operation.name, str(part.dtype)) for part in laid_out([np.zeros(2, d) for d in dtypes], ops).parts}


@pytest.mark.parametrize(
    ("dtypes", "ops", "parts"),
    [
        (["f2", "f4", ">f4"], ["sum", "mean"], {("sum", "float32")}),
        (["?", "i8"], ["sum"], {("sum", "int64")}),
        (["?", "i1", "i8", "f8"], ["mean"], {("sum", "float64")}),
        (["?", "i1", "f8", "D"], ["land"], {("land", "bool")}),
        (["f2", "f4", "i4"], ["maxloc"], {("maxloc", "float32"), ("maxloc", "int32")}),
        (["f8", "f8"], ["max", "nanmax"], {("max", "float64"), ("nanmax", "float64")}),
        (["m8[s]", "m8[ms]"], ["sum"], {("sum", "timedelta64[s]"), ("sum", "timedelta64[ms]")}),
    ],
)
def test_what_is_reduced_alike_is_one_part(dtypes, ops, parts):
    number = len(dtypes) * len(ops)
    assert parts_of((dtypes * len(ops))[:number], ops) == parts


def test_operations_of_the_users_own_are_told_apart():
    def first(a, b):
        return a

    layout = laid_out([np.zeros(2)] * 6, [first, np.hypot, np.arctan2])
    assert [part.members for part in layout.parts] == [(0,), (1, 4), (2, 5), (3,)]


def test_no_arrays_are_one_empty_part():
    (part,) = arrange(None, [], [], []).parts
    assert part.length == 0 and pack(part, []).size == 0 and part.views(make_pieces(part, np.empty(0))) == []


def test_descriptions_differ_where_anything_does():
    """However many arrays there are, and wherever it is; and they stay short."""
    number = 3000
    shapes, dtypes, ways = [(i % 7, 2) for i in range(number)], [np.dtype("f4")] * number, [way("sum")] * number
    names = tuple(f"layer{i:04}" for i in range(number))
    for given in (None, names):
        seen = {describe(given, shapes, dtypes, ways)}
        for place in (0, 17, 1501, number - 1):
            changed = [*shapes[:place], (2, shapes[place][0]), *shapes[place + 1 :]]
            seen.add(describe(given, changed, dtypes, ways))
            seen.add(describe(given, shapes, [*dtypes[:place], np.dtype(">f4"), *dtypes[place + 1 :]], ways))
            seen.add(describe(given, shapes, dtypes, [*ways[:place], way("mean"), *ways[place + 1 :]]))
        assert len(seen) == 13
        assert max(map(len, seen)) < LISTED + 100 * BLOCKS
    assert describe(names, shapes, dtypes, ways) != describe((*names[:-1], "other"), shapes, dtypes, ways)


def test_layouts_are_kept():
    arrays = arrays_of(["f4"], 9)
    assert lists.laid_out(None, arrays, "sum") is lists.laid_out(None, [array.copy() for array in arrays], "sum")
    assert lists.laid_out(None, arrays, "sum") is not lists.laid_out(None, arrays[::-1], "sum")
    assert lists.laid_out(None, arrays, ["sum"] * 9).parts == lists.laid_out(None, arrays, "sum").parts


def test_public_functions_document_their_parameters():
    for public in hpcreduce.allreduce_many, hpcreduce.Fused:
        for section in ("Parameters", "Raises", "Examples"):
            assert f"{section}\n" in public.__doc__


def test_every_operation_is_reduced_together():
    assert all(way(name).together is not None for name in OPERATIONS)
