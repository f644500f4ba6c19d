"""``reduce``: what it refuses, what it says then, and that the output is written whole or stays as it was."""

import io
import os
import pickle
import signal
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from launching import HPCREDUCE, LAUNCH, PROGRAMS, decent, refused, refused_by_all

COMMAND = ("reduce", "--op", "sum", "-o")


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        """Return what unpickling calls."""
        return open, (self.path, "w")


def npy(array, **options):
    """Return the bytes of an NPY file."""
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def npz(**members):
    """Return the bytes of an NPZ file."""
    file = io.BytesIO()
    np.savez(file, **members)
    return file.getvalue()


def header(text):
    """Return an NPY file that is only a header, true or not."""
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def claim(shape, descr="<f8"):
    """Return an NPY file that claims a shape, and has 80 bytes."""
    return header(f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n") + b"\0" * 80


def flipped(data):
    """Return an archive with another byte in the middle of its first member."""
    return data[:200] + bytes([data[200] ^ 1]) + data[201:]


def bad_files(folder):
    """Return name -> (bytes, words that the error has)."""
    good, model = npy(np.arange(10.0)), npz(x=np.arange(10.0), y=np.arange(4))
    objects = npy(np.array([Trap(folder / "trapped"), 1], dtype=object), allow_pickle=True)
    return {
        "empty.npy": (b"", "NPY"),
        "text.npy": (b"1 2 3\n", "neither an NPY nor an NPZ"),
        "pickle.npy": (pickle.dumps(Trap(folder / "trapped")), "neither an NPY nor an NPZ"),
        "magic.npy": (good[:6], ""),
        "start.npy": (good[:20], ""),
        "no data.npy": (good[:128], ""),
        "short.npy": (good[:-16], ""),
        "future.npy": (good[:6] + b"\x09" + good[7:], ""),
        "nonsense.npy": (header("{'descr': 'what', 'shape': (3,)}\n"), ""),
        "code.npy": (header("__import__('os').system('touch trapped')\n"), ""),
        "objects.npy": (objects, "pickled Python objects"),
        "huge.npy": (claim((10**15,)), ""),
        "vast.npy": (claim((2**62, 2**62)), ""),
        "negative.npy": (claim((-1,)), ""),
        "short.npz": (model[: len(model) // 2], ""),
        "flipped.npz": (flipped(model), ""),
        "no arrays.npz": (zipped({"notes.txt": b"hello"}), "holds no array"),
        "objects.npz": (zipped({"x.npy": objects}), "pickled Python objects"),
        "short inside.npz": (zipped({"x.npy": good[:-16]}), ""),
    }


def zipped(members):
    """Return the bytes of a zip file."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


@pytest.fixture
def good(folder):
    """Write good arrays, and an output of an earlier run."""
    np.save(folder / "a.npy", np.arange(10.0))
    np.savez(folder / "a.npz", x=np.arange(10.0), y=np.arange(4))
    (folder / "out.npy").write_bytes(b"of an earlier run")
    (folder / "out.npz").write_bytes(b"of an earlier run")
    yield folder
    for name in "out.npy", "out.npz":
        assert (folder / name).read_bytes() == b"of an earlier run"
    assert not list(folder.rglob("*.part")) and not (folder / "trapped").exists()


@pytest.mark.parametrize("ranks", [1, 3])
def test_bad_file_is_named_by_one_rank(many, good, ranks):
    files = bad_files(good)
    for name, (data, _) in files.items():
        (good / name).write_bytes(data)
    before = ["a.npy"] * ranks if ranks > 1 else []
    found = many(ranks, [[*COMMAND, "out.npy", *before, name] for name in files])
    for said, (name, (_, word)) in zip(found, files.items(), strict=True):
        refused_by_all(said, 1, f"{name}", word)
        assert len(said.errs[0].splitlines()) == 1 and max(said.seconds) < 10, said


def test_whole_file_named_first_or_last(many, good):
    (good / "short.npy").write_bytes(npy(np.arange(10.0))[:-16])
    found = many(3, [[*COMMAND, "out.npy", *names] for names in (["short.npy", "a.npy"], ["short.npy"] * 5)])
    for said in found:
        refused_by_all(said, 1, "short.npy")


MISFITS = {
    "shape": (["a.npy", "long.npy"], [], "long.npy", "(11,)", "(10,)", "a.npy"),
    "shape along others": (["deep.npy", "wide.npy"], ["--axis", "0"], "wide.npy", "(2, 4)", "(2, 3)", "deep.npy"),
    "dimensions": (["a.npy", "deep.npy"], ["--axis", "0"], "deep.npy", "a.npy"),
    "dtype": (["a.npy", "a.npy", "ints.npy"], [], "ints.npy", "int64", "float64", "a.npy"),
    "member's dtype": (["a.npz"], [], "a.npz:y", "int64", "float64", "a.npz:x"),
    "member's shape": (["a.npz", "b.npz"], ["--member", "x"], "b.npz:x", "(3,)", "(10,)", "a.npz:x"),
    "no such member": (["a.npz"], ["--member", "z"], "a.npz", "'z'", "x, y"),
    "no members": (["a.npz", "a.npy"], ["--member", "x"], "a.npy", "'x'"),
    "no axis": (["a.npy"], ["--axis", "1"], "a.npy", "(10,)", "axis 1"),
    "no axis before": (["a.npy"], ["--axis", "-2"], "a.npy", "(10,)", "axis -2"),
    "no axis at all": (["point.npy"], ["--axis", "0"], "point.npy", "()"),
    "no rows": (["none.npy", "none.npy"], ["--axis", "0"], "none.npy", "empty"),
    "complex max": (["complex.npy"], ["--op", "max"], "complex.npy", "complex128", "max"),
    "date sum": (["dates.npy"], [], "dates.npy", "datetime64", "sum"),
    "text": (["text.npy"], [], "text.npy", "<U3", "sum"),
    "records": (["records.npy"], [], "records.npy", "sum"),
    "folder": (["a.npy", "folder"], [], "folder", "directory"),
    "missing": (["missing 1.npy", "a.npy", "missing 2.npy"], [], "missing 1.npy", "missing 2.npy"),
    "below a file": (["a.npy/b.npy"], [], "a.npy/b.npy", "Not a directory"),
}


def test_misfits_are_named(many, good):
    arrays = {"long": np.arange(11.0), "deep": np.ones((2, 3)), "wide": np.ones((2, 4)), "ints": np.arange(10)}
    arrays |= {"point": np.array(1.0), "none": np.ones((0, 3)), "complex": np.ones(3, complex)}
    arrays |= {"dates": np.zeros(3, "M8[s]"), "text": np.array(["abc"]), "records": np.zeros(2, "i4,f8")}
    for name, array in arrays.items():
        np.save(good / f"{name}.npy", array)
    np.savez(good / "b.npz", x=np.arange(3.0))
    (good / "folder").mkdir()
    found = many(3, [[*COMMAND, "out.npy", *files, *options] for files, options, *_ in MISFITS.values()])
    for said, (_, _, *words) in zip(found, MISFITS.values(), strict=True):
        refused_by_all(said, 1, *words)


def test_members_that_do_not_fit_an_archive(many, good):
    np.savez(good / "b.npz", x=np.arange(10.0))
    np.savez(good / "c.npz", x=np.arange(10.0), y=np.arange(5))
    np.savez(good / "d.npz", x=np.arange(10.0), y=np.arange(4.0), z=np.arange(3))
    plan = {("b.npz",): ("b.npz", "'y'", "a.npz"), ("c.npz",): ("c.npz:y", "(5,)", "(4,)", "a.npz:y")}
    plan |= {("d.npz",): ("'z'",), ("a.npy",): ("a.npy", "no named members")}
    found = many(2, [[*COMMAND, "out.npz", "a.npz", *names] for names in plan])
    for said, words in zip(found, plan.values(), strict=True):
        refused_by_all(said, 1, *words)


def test_what_exact_does_not_take(many, good):
    np.save(good / "dates.npy", np.zeros(3, "M8[s]"))
    np.save(good / "long.npy", np.ones(3, np.longdouble))
    np.save(good / "ints.npy", np.array([5, 2**63 - 1]))
    np.save(good / "none.npy", np.zeros((0, 3)))
    plan = {("dates.npy",): ("dates.npy", "datetime64[s]"), ("long.npy",): ("long.npy", "longdouble", "float128")}
    plan |= {("ints.npy", "ints.npy"): ("ints.npy", "element 1 is 18446744073709551614", "int64")}
    found = many(3, [*([*COMMAND, "out.npy", *names, "--exact"] for names in plan), [*COMMAND, "0.npy", "none.npy"]])
    for said, words in zip(found, plan.values(), strict=False):
        assert all(status == 1 for status in said.statuses) and any(word in said.errs[0] for word in words), said
    assert found[-1].statuses == [0] * 3 and (good / "out.npy").read_bytes() == b"of an earlier run"
    said = many(2, [["reduce", "a.npy", "--op", "max", "-o", "out.npy", "--exact"]])[0]
    assert said.statuses == [2] * 2 and "--exact goes with --op sum or mean, found max" in said.errs[0]


def test_misfit_fails_before_data_are_read(cli, good):
    """Two headers that do not fit, over 400 GB of holes."""
    for name, shape in ("one.npy", (10**10,)), ("two.npy", (10**10 + 1,)):
        with open(good / name, "wb") as file:
            file.write(claim(shape))
            file.truncate(128 + 8 * shape[0])
    result = refused(cli(2, *COMMAND, "out.npy", "one.npy", "two.npy"), 1, "one.npy", "two.npy")
    assert result.seconds < 15


def test_H14_output_that_cannot_be_written(many, cli, good):
    (good / "place.npy").mkdir()
    paths = {"no/such/out.npy": "No such", "a.npy/out.npy": "Not a directory", "place.npy": "directory"}
    paths["/proc/a.npz"] = ""
    found = many(3, [[*COMMAND, path, "a.npz" if path.endswith("z") else "a.npy"] for path in paths])
    for said, (path, word) in zip(found, paths.items(), strict=True):
        refused_by_all(said, 1, path, word)
    result = refused(cli(3, *COMMAND, "no/such/out.npy", "a.npy"), 1, "no/such/out.npy", "No such")
    assert result.seconds < 20 and os.listdir(good / "place.npy") == []


@pytest.mark.parametrize("output, source", [("out.npy", "big.npy"), ("out.npz", "big.npz")])
def test_H14_disk_that_is_full(mpirun, good, output, source):
    """A limit on the size of files stands in for a full disk."""
    np.save(good / "big.npy", np.arange(100_003.0))
    np.savez(good / "big.npz", x=np.arange(100_003.0))
    result = decent(mpirun(3, "python", PROGRAMS / "full_disk.py", *COMMAND, output, source, source))
    refused(result, 1, f"cannot write {output}")
    assert result.seconds < 20


def holes(folder, names, rows):
    """Write arrays of zeros that take no place on the disk but take a while to read."""
    for name in names:
        with open(folder / name, "wb") as file:
            file.write(header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({rows}, 8), }}".ljust(117) + "\n"))
            file.truncate(128 + 64 * rows)


@pytest.fixture
def reading(start, good):
    """Start a reduction of large files, one of them small; return the job and its writer once it is under way."""

    def reading(small):
        names = ["0.npy", "1.npy", "2.npy"]
        holes(good, names, 40_000_000)
        if small is not None:
            holes(good, [names[small]], 1)
        job = start(LAUNCH, 3, *HPCREDUCE, *COMMAND, "new.npy", "--axis", 0, *names)
        deadline = time.monotonic() + 30
        while not (ranks := [pid for pid in job.processes() if reads(pid, *names)]):
            assert time.monotonic() < deadline and job.process.poll() is None, job.wait(0.1)
        time.sleep(0.3)
        return job, ranks

    return reading


def reads(pid, *names):
    """Whether a process has one of these files open or mapped."""
    try:
        mapped = Path(f"/proc/{pid}/maps").read_text().splitlines()
        return any(
            path.endswith(names) for path in [*mapped, *map(os.path.realpath, Path(f"/proc/{pid}/fd").iterdir())]
        )
    except OSError:
        return False


@pytest.mark.parametrize("small, number", [(None, signal.SIGTERM), (0, signal.SIGTERM), (None, signal.SIGINT)])
def test_H13_signal_in_the_middle(reading, good, small, number):
    """Whoever reads when the signal comes, or waits for one who reads: no orphan, no partial file, no output."""
    job, _ = reading(small)
    os.kill(job.process.pid, number)
    sent = time.monotonic()
    result = job.wait(30)
    assert time.monotonic() - sent < 30 and result.status != 0 and not result.left, result
    assert "Traceback" not in result.err and "new.npy" not in result.out, result
    assert not list(good.glob("new.npy*")), os.listdir(good)


def test_H13_killed_rank(reading, good):
    job, ranks = reading(None)
    os.kill(ranks[-1], signal.SIGKILL)
    result = job.wait(30)
    assert result.status != 0 and not result.left and "new.npy" not in result.out, result
    assert not (good / "new.npy").exists()
    for path in good.glob("new.npy*.part"):  # the launcher may give the others no time
        path.unlink()
