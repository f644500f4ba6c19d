"""``reduce``: the values, against NumPy in the documented work type, on more and on fewer ranks than files."""

import math

import numpy as np
import pytest

RANKS = [1, 2, 3, 5]
LENGTHS = (300, 1, 0, 411, 512, 73, 500)  # of the seven shards of digits: 1,797 images


def reduce(op, files, output="out.npy", *options):
    """Return a command line."""
    return ["reduce", *map(str, files), "--op", op, "-o", str(output), *map(str, options)]


@pytest.fixture
def run(many, folder):
    """Run reductions in one launch; all must work. Returns what the first rank printed for each."""

    def run(ranks, commands):
        found = many(ranks, commands)
        for command, said in zip(commands, found, strict=True):
            assert said.statuses == [0] * ranks and not any(said.errs), (command, said)
            assert len(said.outs[0].splitlines()) == 1, said
        assert not list(folder.glob("*.part"))
        return [said.outs[0].strip() for said in found]

    return run


def save(folder, name, arrays):
    """Save arrays as ``NAME.0.npy``, ``NAME.1.npy``, ... and return those names."""
    for index, array in enumerate(arrays):
        np.save(folder / f"{name}.{index}.npy", array)
    return [f"{name}.{index}.npy" for index in range(len(arrays))]


def check(path, expected):
    """Check value, dtype with byte order, and shape."""
    found = np.load(path, allow_pickle=False)
    expected = np.asarray(expected)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), (path, found.dtype, expected.dtype)
    assert np.array_equal(found, expected, equal_nan=expected.dtype.kind in "fcmM"), (path, found, expected)


def fold(op, arrays, axis=None):
    """Reduce with NumPy, in the work type that the documentation names, and round once."""
    first = arrays[0].dtype
    work = np.dtype(np.float32) if first == np.float16 else first.newbyteorder("=")
    result = first
    if op == "mean" and first.kind in "biu":
        work = result = np.dtype(np.float64)
    elif op in ("sum", "prod") and first.kind == "b":
        work = result = np.dtype(np.int64)
    stack = np.stack(arrays) if axis is None else np.concatenate(arrays, axis)
    ufunc = {"sum": np.add, "mean": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[op]
    total = ufunc.reduce(stack.astype(work), axis=axis or 0, dtype=work)
    if op == "mean":
        total = (total / stack.shape[axis or 0]).astype(work)
    return np.asarray(total).astype(result)


@pytest.mark.parametrize("ranks", RANKS)
def test_mean_image_of_the_digits(run, folder, ranks):
    images = pytest.importorskip("sklearn.datasets").load_digits().images
    assert images.shape == (1797, 8, 8) and sum(LENGTHS) == 1797
    shards = save(folder, "digits", np.split(images, np.cumsum(LENGTHS)[:-1]))
    ops = ("mean", "sum", "max", "min")
    lines = run(ranks, [reduce(op, shards, f"{op}.npy", "--axis", 0) for op in ops])
    check(folder / "mean.npy", images.mean(axis=0))
    check(folder / "sum.npy", images.sum(axis=0))
    check(folder / "max.npy", images.max(axis=0))
    check(folder / "min.npy", images.min(axis=0))
    for word in ("mean.npy", "mean of", "1797 records", "7 files", "(8, 8)", "float64"):
        assert word in lines[0], lines[0]


KINDS = [
    "bool",
    "int8",
    "uint8",
    "int32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "longdouble",
    "complex64",
]
KINDS += ["complex128", ">f8", ">i4", ">c8"]
SHAPES = {"plain": (5, 3), "empty": (0,), "point": ()}


def parts(kind, shape, count=4):
    """Return arrays that differ, whose reduction is exact in any order, and wraps around or rounds in narrow types."""
    index = np.arange(int(np.prod(shape))).reshape(shape)
    dtype = np.dtype(kind)
    whole = [(index * 7 + 13 * part) % 23 - (0 if dtype.kind == "u" else 11) for part in range(count)]
    if dtype.kind == "b":
        return [values % 3 > 0 for values in whole]
    if kind == "float16":
        return [(values * 61 + 700).astype(dtype) for values in whole]
    if dtype.kind == "c":
        return [np.asarray(values * (1 - 2j)).astype(dtype) for values in whole]
    return [np.asarray(values * (9 if dtype.itemsize == 1 else 1)).astype(dtype) for values in whole]


def small(arrays):
    """Return arrays whose product is exact: 1, -1 and 2."""
    return [np.where(array > 0, 2, 1).astype(array.dtype) for array in arrays]


def cases(folder):
    """Yield (name, op, arrays, files): every kind of array with every operation that takes it."""
    for kind in KINDS:
        for label, shape in SHAPES.items() if kind in ("float64", "bool", ">f8") else [("plain", (5, 3))]:
            arrays = parts(kind, shape)
            order = np.asfortranarray if kind in ("float32", "int32") else np.asarray
            files = save(folder, f"{kind.replace('>', 'big')}-{label}", [order(array) for array in arrays])
            for op in ("sum", "mean") if np.dtype(kind).kind == "c" else ("sum", "mean", "max", "min"):
                yield f"{op}-{files[0][:-6]}", op, arrays, files
            if np.dtype(kind).kind not in "bc":
                factors = small(arrays)
                yield f"prod-{files[0][:-6]}", "prod", factors, save(folder, f"factors-{files[0][:-6]}", factors)


@pytest.mark.parametrize("ranks", [2, 5])
def test_every_dtype_and_operation(run, folder, ranks):
    todo = list(cases(folder))
    run(ranks, [reduce(op, files, f"{name}.npy") for name, op, _, files in todo])
    for name, op, arrays, _ in todo:
        check(folder / f"{name}.npy", fold(op, arrays))
    assert len(todo) > 70


def test_C13_arrays_without_elements(run, folder):
    shapes = {"flat": (3, 0), "none": (0, 3), "between": (2, 0, 2)}
    files = {name: save(folder, name, [np.zeros(shape)] * 3) for name, shape in shapes.items()}
    ops = ("sum", "mean", "max")
    run(2, [reduce(op, files[name], f"{op}-{name}.npy") for op in ops for name in shapes])
    for op in ops:
        for name, shape in shapes.items():
            check(folder / f"{op}-{name}.npy", np.zeros(shape))


def test_values_that_tell_work_types_apart(run, folder):
    half = [np.full(4, 40000, np.float16)] * 3
    true = [np.array([True, False])] * 3
    spoiled = [np.array([1.0, np.nan, 3.0]), np.array([2.0, 5.0, np.nan])]
    dates = [np.array(["2020-01-01", "NaT"], "M8[us]"), np.array(["2021-01-01", "2022-01-01"], "M8[us]")]
    groups = {"half": half, "true": true, "spoiled": spoiled, "dates": dates, "bytes": [np.full(2, 100, np.int8)] * 3}
    files = {name: save(folder, name, arrays) for name, arrays in groups.items()}
    todo = [("mean", "half"), ("sum", "half"), ("sum", "true"), ("mean", "true"), ("max", "true"), ("max", "spoiled")]
    todo += [("max", "dates"), ("sum", "bytes"), ("mean", "bytes")]
    run(3, [reduce(op, files[name], f"{op}-{name}.npy") for op, name in todo])
    check(folder / "mean-half.npy", half[0])
    check(folder / "sum-half.npy", np.full(4, np.inf, np.float16))
    check(folder / "sum-true.npy", np.array([3, 0]))
    check(folder / "mean-true.npy", np.array([1.0, 0.0]))
    check(folder / "max-true.npy", true[0])
    check(folder / "max-spoiled.npy", np.array([2.0, np.nan, np.nan]))
    check(folder / "max-dates.npy", np.array(["2021-01-01", "NaT"], "M8[us]"))
    check(folder / "sum-bytes.npy", np.full(2, 300 - 256, np.int8))
    check(folder / "mean-bytes.npy", np.full(2, 100.0))


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_more_and_fewer_files_than_ranks(run, folder, ranks):
    arrays = [np.arange(1000, dtype=np.float64) * (part + 1) + part for part in range(11)]
    files = save(folder, "part", arrays)
    counts = (1, 2, 3, 4, 11)
    run(ranks, [reduce("mean", files[:count], f"{count}.npy") for count in counts])
    for count in counts:
        check(folder / f"{count}.npy", fold("mean", arrays[:count]))


def test_arrays_longer_than_a_block(run, folder):
    rows = [np.arange(part, part + 3 * (1 << 20) + 7) % 1000.0 for part in range(3)]
    table = [np.asfortranarray(np.arange(part, part + 2_400_000).reshape(-1, 3) % 1000.0) for part in range(2)]
    files, tables = save(folder, "row", rows), save(folder, "table", table)
    commands = [reduce("sum", files, "row.npy"), reduce("max", files, "top.npy", "--axis", 0)]
    commands += [reduce("mean", tables, "mean.npy"), reduce("sum", tables, "sum.npy", "--axis", 0)]
    run(2, [*commands, reduce("min", tables, "min.npy", "--axis", 1)])
    check(folder / "row.npy", fold("sum", rows))
    check(folder / "top.npy", 999.0)
    check(folder / "mean.npy", fold("mean", table))
    check(folder / "sum.npy", fold("sum", table, 0))
    check(folder / "min.npy", np.minimum(table[0].min(axis=1), table[1].min(axis=1)))


def test_axes(run, folder):
    lengths = (2, 0, 5)
    tall = save(folder, "tall", [np.arange(length * 12).reshape(length, 4, 3) - 9 for length in lengths])
    deep = [np.arange(4 * length * 3).reshape(4, length, 3) * 2 for length in lengths]
    ints = save(folder, "deep", deep)
    swapped = save(folder, "swapped", [np.asfortranarray(array.astype(">f4")) for array in deep])
    plan = {"first": ("sum", tall, 0), "middle": ("mean", ints, 1), "negative": ("max", ints, -2)}
    plan |= {"swapped": ("min", swapped, 1), "whole": ("prod", tall, -3)}
    lines = run(3, [reduce(op, files, f"{name}.npy", "--axis", axis) for name, (op, files, axis) in plan.items()])
    together = np.concatenate(deep, 1)
    check(folder / "first.npy", np.concatenate([np.load(folder / name) for name in tall]).sum(axis=0))
    check(folder / "middle.npy", together.mean(axis=1))
    check(folder / "negative.npy", together.max(axis=1))
    check(folder / "swapped.npy", together.min(axis=1).astype(">f4"))
    check(folder / "whole.npy", np.concatenate([np.load(folder / name) for name in tall]).prod(axis=0))
    assert all("7 records" in line for line in lines), lines


def test_archives(run, folder):
    models = [{"layer/weight": np.full((2, 3), part + 1.0), "bias": np.arange(4) * part} for part in range(3)]
    for index, model in enumerate(models):
        write = np.savez_compressed if index == 1 else np.savez
        write(folder / f"{index}.npz", **dict(reversed(model.items()) if index == 2 else model.items()))
    np.save(folder / "plain.npy", np.ones((2, 3)))
    files = ["0.npz", "1.npz", "2.npz"]
    lines = run(
        2,
        [
            reduce("mean", files, "mean.npz"),
            reduce("sum", files, "bias.npy", "--member", "bias"),
            reduce("sum", [*files, "plain.npy"][:2], "weight.npz", "--member", "layer/weight"),
            reduce("max", ["0.npz"], "bias.npz", "--member", "bias", "--axis", 0),
        ],
    )
    with np.load(folder / "mean.npz", allow_pickle=False) as found:
        assert sorted(found) == ["bias", "layer/weight"]
        assert (found["bias"] == np.arange(4) * 1.0).all() and found["bias"].dtype == np.float64
        assert (found["layer/weight"] == np.full((2, 3), 2.0)).all() and found["layer/weight"].shape == (2, 3)
    check(folder / "bias.npy", np.arange(4) * 3)
    with np.load(folder / "weight.npz") as found:
        assert list(found) == ["layer/weight"] and (found["layer/weight"] == 3.0).all()
    with np.load(folder / "bias.npz") as found:
        assert found["bias"].shape == () and found["bias"] == 0
    assert "2 members" in lines[0] and "3 files" in lines[0]


def test_all_members_become_one_in_an_npy_file(run, folder):
    np.savez(folder / "a.npz", one=np.arange(3), two=np.arange(3) * 10)
    np.save(folder / "b.npy", np.arange(3) * 100)
    run(3, [reduce("sum", ["a.npz", "b.npy"])])
    check(folder / "out.npy", np.arange(3) * 111)


def test_content_decides_and_an_input_may_be_the_output(run, folder):
    np.save(folder / "a.npy", np.arange(3.0))
    (folder / "a.npy").rename(folder / "no ending")
    np.save(folder / "out.npy", np.ones(3))
    run(2, [reduce("sum", ["no ending", "out.npy", folder / "out.npy"])])
    check(folder / "out.npy", np.arange(3.0) + 2)


def test_exact_is_the_same_for_any_ranks_and_order(run, folder):
    random = np.random.default_rng(11)
    kinds = {"float64": 300, "float32": 30, "float16": 6, "complex64": 30}
    todo = {}
    for kind, span in kinds.items():
        arrays = [
            (random.standard_normal((40, 9)) * 2.0 ** random.integers(-span, span, (40, 9))).astype(kind)
            for _ in range(5)
        ]
        arrays[3][0, :4] = [np.inf, np.nan, 0, -0.0]
        parts = [np.stack([array.real, array.imag]).astype(float) for array in arrays]
        total = np.array([[math.fsum(each) for each in row] for row in np.stack(parts, -1).reshape(2 * 40, 9, -1)])
        real, imaginary = total.reshape(2, 40, 9)
        todo[kind] = save(folder, kind, arrays), (real + 1j * imaginary if kind == "complex64" else real)
    ints = [np.full(3, 200, np.uint8), np.array([1, 2, 255], np.uint8)]
    small = save(folder, "small", ints)
    rows = save(folder, "rows", [np.asfortranarray(random.standard_normal((n, 4))) * 1e16 for n in (3, 0, 501, 20)])
    for ranks in (1, 3, 5):
        commands = []
        for kind, (files, _) in todo.items():
            commands.append([*reduce("sum", files[:: 1 if ranks == 1 else -1], f"sum-{kind}.{ranks}.npy"), "--exact"])
            commands.append([*reduce("mean", files, f"mean-{kind}.{ranks}.npy"), "--exact"])
        commands += [[*reduce("sum", small, "small.npy"), "--exact"], [*reduce("mean", small, "smean.npy"), "--exact"]]
        commands.append([*reduce("sum", rows, f"along.{ranks}.npy", "--axis", 0), "--exact"])
        lines = run(ranks, commands)
        assert lines[0] == f"sum-float64.{ranks}.npy: exact sum of 5 arrays in 5 files, shape (40, 9), dtype float64"
    with np.errstate(over="ignore", invalid="ignore"):
        for kind, (_, total) in todo.items():
            if kind in ("float64", "float32"):  # the others overflow or have NaN in one part
                check(folder / f"sum-{kind}.1.npy", total.astype(kind))
            for name in f"sum-{kind}.1.npy", f"mean-{kind}.1.npy", "along.1.npy":
                for ranks in (3, 5):
                    assert (folder / name.replace(".1.", f".{ranks}.")).read_bytes() == (folder / name).read_bytes()
    stacked = np.concatenate([np.load(folder / name) for name in rows])
    check(folder / "along.1.npy", np.array([math.fsum(column) for column in stacked.T]))
    check(folder / "small.npy", np.array([201, 202, 455], np.uint64))
    check(folder / "smean.npy", np.array([100.5, 101, 227.5]))


def test_exact_in_pieces_and_members(run, folder):
    arrays = [(np.arange(600_000) * (part + 1) + 0.1).reshape(2, -1) for part in range(3)]
    for part, array in enumerate(arrays):
        np.savez(folder / f"{part}.npz", weights=array, bias=np.float32(part + 0.5))
    run(2, [[*reduce("mean", [f"{part}.npz" for part in range(3)], "mean.npz"), "--exact"]])
    found = np.load(folder / "mean.npz")
    assert found["bias"] == np.float32(1.5) and found["bias"].dtype == np.float32
    total = [math.fsum(each) for each in zip(*(array.reshape(-1)[::9999] for array in arrays), strict=True)]
    assert np.allclose(found["weights"].reshape(-1)[::9999], np.array(total) / 3, 1e-15, 0)
