"""Array files: headers, groups, folding, without ranks."""

import io

import numpy as np
import pytest

from hpcreduce import arrayfiles
from hpcreduce.arrayfiles import FileError, Member
from hpcreduce.runtime.operations import OPERATIONS

F8 = np.dtype(float)


def member(path, shape, dtype=F8, name=""):
    return Member(path, name, shape, dtype)


def saved(folder, *arrays):
    paths = [str(folder / f"{index}.npy") for index in range(len(arrays))]
    for path, array in zip(paths, arrays, strict=True):
        np.save(path, array)
    return [array for path in paths for array in arrayfiles.inspect(path)]


def folded(members, op, axis=None):
    (group,) = arrayfiles.arrange(members, False, axis)
    operation = OPERATIONS[op]
    work = operation.types(group.dtype)[0]
    return arrayfiles.fold(group.members, group.shape, operation, work, axis, lambda: None)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (5, 3), (2, 3, 4), (0,), (3, 0)])
@pytest.mark.parametrize("block", [1, 4, 1 << 20])
def test_folding_equals_numpy(tmp_path, monkeypatch, order, shape, block):
    monkeypatch.setattr(arrayfiles, "BLOCK", block)
    arrays = [np.array(np.arange(np.prod(shape)).reshape(shape) * (k + 1.0), order=order) for k in range(4)]
    members = saved(tmp_path, *arrays)
    for op, reference in ("sum", np.sum), ("max", np.max), ("min", np.min), ("prod", np.prod):
        assert (folded(members, op) == reference(arrays, axis=0)).all()


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("block", [1, 5, 1 << 20])
def test_folding_along_an_axis_equals_numpy(tmp_path, monkeypatch, axis, block):
    monkeypatch.setattr(arrayfiles, "BLOCK", block)
    whole = np.arange(9 * 9 * 9).reshape(9, 9, 9) % 101 - 7
    parts = np.split(whole, [0, 1, 5, 5, 8], axis=axis)
    members = saved(tmp_path, *parts)
    for op, reference in ("sum", np.sum), ("max", np.max), ("min", np.min):
        assert (folded(members, op, axis) == reference(whole, axis=axis)).all()
    (group,) = arrayfiles.arrange(members, False, axis)
    assert group.total == 9 and group.shape == (9, 9)


def test_groups_by_name():
    first = [member("a", (2,), name="w"), member("a", (3,), name="b")]
    second = [member("b", (3,), name="b"), member("b", (2,), name="w")]
    groups = arrayfiles.arrange(first + second, True, None)
    assert [(group.name, [array.path for array in group.members]) for group in groups] == [
        ("w", ["a", "b"]),
        ("b", ["a", "b"]),
    ]


@pytest.mark.parametrize(
    ("members", "by_name", "axis", "text"),
    [
        ([member("a", (2,)), member("b", (3,))], False, None, r"b: shape \(3,\) differs from shape \(2,\) of a"),
        ([member("a", (2,)), member("b", (2,), np.dtype("f4"))], False, None, "b: dtype float32 differs from"),
        ([member("a", (2, 3)), member("b", (1, 4))], False, 0, "b: shape .* differs in more than axis 0"),
        ([member("a", (2,))], False, 1, "a: has shape .*no axis 1"),
        ([member("a", ())], False, 0, "no axis 0"),
        ([member("a", (2,)), member("b", ())], False, 0, "b: has shape .*no axis 0"),
        ([member("a", (0, 3))], False, 0, "empty along axis 0"),
        ([member("a", (2,), name="w"), member("b", (2,), name="v")], True, None, "lacks the member"),
        ([member("a", (2,))], True, None, "an NPY file has no named members"),
    ],
)
def test_arrays_that_do_not_fit_are_named(members, by_name, axis, text):
    with pytest.raises(FileError, match=text):
        arrayfiles.arrange(members, by_name, axis)


def test_byte_order_alone_is_no_difference(tmp_path):
    members = saved(tmp_path, np.arange(4.0), np.arange(4, dtype=">f8"))
    assert (folded(members, "sum") == 2 * np.arange(4)).all()


def damaged(folder, content):
    path = folder / "file.npy"
    path.write_bytes(content)
    return str(path)


def npy(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    "content", [b"", b"text", b"\x93NUMPY", b"\x93NUMPY\x09\x00", b"PK\x03\x04", npy(np.arange(3))[:40]]
)
def test_damaged_headers_are_errors_that_name_the_file(tmp_path, content):
    path = damaged(tmp_path, content)
    with pytest.raises(FileError) as caught:
        arrayfiles.inspect(path)
    assert str(caught.value).startswith(path)


def test_truncated_data_is_an_error(tmp_path):
    members = arrayfiles.inspect(damaged(tmp_path, npy(np.arange(100.0))[:-16]))
    with pytest.raises(FileError, match=r"file\.npy"):
        folded(members, "sum")


def test_pickled_objects_are_refused(tmp_path):
    with pytest.raises(FileError, match="never loaded"):
        arrayfiles.inspect(damaged(tmp_path, npy(np.array([{}, None]), allow_pickle=True)))
