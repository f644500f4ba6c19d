"""What is decided about gradients without a message: buckets, descriptions, and who is to blame."""

import math

import numpy as np
import pytest

from hpcreduce.collectives import check_weight
from hpcreduce.gradients import replicas, tensors
from hpcreduce.gradients.buckets import arrange
from hpcreduce.gradients.parameters import NAMED, described, differences, like, read
from hpcreduce.gradients.reports import nonfinite


def test_buckets_hold_neighbours_of_one_dtype():
    dtypes = ["f4", "f4", "f8", "f4", "f2", "f8", "f4"]
    _, parameters = read([np.zeros(index + 1, dtype) for index, dtype in enumerate(dtypes)])
    order = list(range(len(dtypes)))[::-1]
    for most in range(1, 200):
        buckets = arrange(parameters, order, most)
        assert sorted(index for bucket in buckets for index in bucket) == sorted(order)
        for bucket in buckets:
            assert bucket == sorted(bucket, reverse=True) and len({dtypes[index] for index in bucket}) == 1
            assert len(bucket) == 1 or sum((i + 1) * np.dtype(dtypes[i]).itemsize for i in bucket) <= most
    assert arrange(parameters, order, 1 << 20) == [[6, 3, 1, 0], [5, 2], [4]]
    assert arrange([], [], 1) == []


def test_parameters_are_sorted_by_name_and_native():
    names, found = read({"w": np.zeros((2, 3), ">f4").T, "b": np.zeros(())})
    assert names == ("b", "w") and described(found) == [["'b'", "float64 ()"], ["'w'", "float32 (3, 2)"]]
    assert found[1].trouble() == "" and found[1].work == np.float32
    assert read([np.zeros(3, "f2")])[1][0].work == np.float32
    for bad, text in (
        ({"w": np.zeros(2, "i4")}, "parameter 'w': gradients are floating point or complex numbers, found dtype int32"),
        ([np.zeros(2), 1.0], "parameter 1: expected a NumPy array or a tensor of torch, found float"),
        ([np.zeros(2, "M8[s]")], "parameter 0"),
        (np.zeros(3), "a sequence or a mapping"),
        ({1: np.zeros(3)}, "must be strings"),
    ):
        with pytest.raises(TypeError, match=text):
            read(bad)


def test_gradients_are_passed_like_parameters():
    assert like(("a", "b"), 2, {"b": 1, "a": None}) == [None, 1] and like(None, 2, (3, None)) == [3, None]
    for names, bad, kind, text in (
        (("a",), [1], TypeError, "gradients must be a mapping by name, like params, found list"),
        (None, {"a": 1}, TypeError, "gradients must be a sequence of 2, like params, found dict"),
        (("a", "b"), {"a": 1}, ValueError, "'b' is missing"),
        (None, [1], ValueError, "gradients must be 2 arrays or None, like params, found 1"),
    ):
        with pytest.raises(kind, match=text):
            like(names, 2, bad)


def test_differences_name_the_first_parameters_and_count_the_others():
    def description(size, **options):
        return {"parameters": described(read([np.zeros(size)] * 5)[1]), "options": options}

    text = differences([description(2, order=None)] * 2 + [description(3, order="rank")])
    assert text.startswith(
        "option order: ranks 0-1 have None; rank 2 has 'rank'. parameter 0: ranks 0-1 have float64 (2,)"
    )
    assert text.endswith(f" (and {6 - NAMED} more)") and "rank 2 has float64 (3,)" in text
    assert differences([description(2), description(2)]) == ""


def test_who_is_to_blame():
    lost = [["'w'", "1 NaN and 0 infinities in 2 elements"]]
    text, ranks = nonfinite([lost * 2, [], lost * 3])
    assert ranks == (0, 2) and text.count("parameter 'w' on rank") == NAMED and text.endswith(" and 2 more")
    sums = np.array([[7, 1], [7, 2], [8, 2]])
    assert replicas.drifted(sums, ["a", "b"]) == (
        "the replicas differ: parameter a on rank 2, parameter b on rank 0",
        (0, 2),
    )
    assert replicas.drifted(np.array([[1], [2]]), ["a"])[1] == (1,)


def test_check_sums_see_bits_and_places():
    array = np.arange(12.0).reshape(3, 4)
    changed = [array.T, array[::-1], array + 1e-15 * (array == 5), -0.0 * array, array.astype("f4")]
    assert len({replicas.checksum(each) for each in [array, *changed]}) == 6
    assert replicas.checksum(array.T.copy()) == replicas.checksum(array.T) and replicas.checksum(np.zeros(())) != 0


def test_weights():
    for weight in (0, 1, 2.5, np.float32(3), np.int64(4)):
        check_weight(weight)
    for weight in (-1, math.nan, math.inf):
        with pytest.raises(ValueError, match="finite and not below 0"):
            check_weight(weight)
    for weight in ("1", None, True, 1j):
        with pytest.raises(TypeError, match="must be a number"):
            check_weight(weight)


def test_arrays_are_no_tensors():
    assert not tensors.is_tensor(np.zeros(3)) and not tensors.is_tensor(None)
