"""``validate`` and the main job: what is right passes; whatever is wrong is found, named, and ends with status 1."""

import json
import math
import os
import re
import threading

import pytest
from launching import HPCREDUCE, PROGRAMS, decent, refused, refused_by_all

SMALL = ("validate", "--ops", "sum", "--dtypes", "float64", "--counts", "0,1,3,101")
LINE = re.compile(r"validation: \d+ cases on |  \w+: op \w+, dtype |  \.\.\. and \d+ more$|worst error of ")
KEYS = {"algorithm", "op", "dtype", "count", "in_place", "rank", "index", "expected", "found", "against"}


def strict(text):
    """Parse JSON, without the NaN and Infinity that are none."""

    def refuse(word):
        raise ValueError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def broken(mpirun, folder):
    """Run ``validate`` with faults; return the result and the failures by fault."""

    def broken(faults, *arguments):
        command = ["python", PROGRAMS / "broken.py", faults, *(arguments or SMALL)]
        result = decent(mpirun(3, *command))
        assert result.status == 1 and not result.errors, result
        assert "Warning" not in result.err, result
        documents = {fault: strict((folder / f"{fault}.json").read_text()) for fault in faults.split(",")}
        for document in documents.values():
            assert set(document) == {"ranks", "cases", "failures", "worst_ulp"} and document["ranks"] == 3
            assert document["failures"] and all(set(failure) == KEYS for failure in document["failures"])
            assert f"{len(document['failures'])} failures" in result.out, result
        assert all(LINE.match(line) for line in result.out.splitlines()), result
        return result, documents

    return broken


def column(failures, *names):
    """Return the different values of some keys."""
    return {tuple(failure[name] for name in names) if names[1:] else failure[names[0]] for failure in failures}


def test_H17_without_a_fault_the_same_program_passes(mpirun, folder):
    result = decent(mpirun(3, "python", PROGRAMS / "broken.py", "none", *SMALL))
    assert result.status == 0 and "0 failures" in result.out and result.err == "", result
    assert strict((folder / "none.json").read_text())["failures"] == []


def test_H17_wrong_ring_is_named(broken):
    result, documents = broken("lost_round")
    failures = documents["lost_round"]["failures"]
    assert column(failures, "algorithm") == {"ring"} and column(failures, "rank") == {0, 1, 2}
    assert column(failures, "in_place") == {True, False} and column(failures, "count") >= {1, 3, 101}
    first = re.search(r"^ *ring: op sum, dtype float64, count \d+, .*$", result.out, re.MULTILINE)[0]
    for word in ("rank ", "index ", "expected ", "found ", "exact arithmetic"):
        assert word in first, first


def test_H17_wrong_library_is_named(broken):
    _, documents = broken("library", "validate", "--ops", "sum,max", "--dtypes", "int32", "--counts", "1,7")
    failures = documents["library"]["failures"]
    wanted = {("MPI_Allreduce", "sum", "int32", 2), ("MPI_Allreduce", "max", "int32", 2)}
    assert column(failures, "algorithm", "op", "dtype", "rank") == wanted
    assert column(failures, "count", "index") == {(1, 0), (7, 6)}
    assert all(int(failure["found"]) == int(failure["expected"]) + 1 for failure in failures)


@pytest.mark.parametrize("fault, word", [("lost_message", "Timeout"), ("wrong_size", ""), ("raises", "ZeroDivision")])
def test_H17_algorithm_that_does_not_come_back(broken, fault, word):
    result, documents = broken(fault)
    assert result.seconds < 20 and "Traceback" not in result.out, result
    assert any(failure["algorithm"] == "ring" and word in failure["found"] for failure in documents[fault]["failures"])


def test_H17_changed_input_and_other_bits_are_found(broken):
    plain = ("validate", "--ops", "max,sum", "--dtypes", "float64", "--counts", "101", "--algorithms", "ring,tree")
    _, documents = broken("changed_input,other_bits", *plain)
    changed = [failure for failure in documents["changed_input"]["failures"] if failure["count"] == 101]
    assert column(changed, "rank", "in_place") == {(1, False)} and column(changed, "algorithm") >= {"ring", "tree"}
    assert all("input" in failure["expected"] for failure in changed)
    bits = documents["other_bits"]["failures"]
    assert column(bits, "rank", "op", "count") == {(1, "max", 101)} and column(bits, "algorithm") >= {"ring", "tree"}
    assert all("bits" in failure["against"] for failure in bits)


@pytest.mark.parametrize("faults", ["zeros", "infinite,other_dtype"])
def test_H17_hopeless_results_are_reported_as_json_too(broken, faults):
    """An infinite error in units in the last place is no reason to lose the report, and none to call it small."""
    _, documents = broken(faults)
    for fault, document in documents.items():
        assert column(document["failures"], "algorithm") >= {"ring", "tree", "mpi"}
        worst = document["worst_ulp"].get("ring")
        assert fault == "other_dtype" or not isinstance(worst, float) or worst > 1000, worst


def test_H17_main_job_stops_at_a_failure(mpirun, folder):
    program = """if True:
        import sys, hpcreduce
        from hpcreduce.commands import run
        row = hpcreduce.ALGORITHMS["ring"]
        hpcreduce.ALGORITHMS["ring"] = row._replace(rounds=lambda *place: list(row.rounds(*place))[:-1])
        sys.exit(run([]))
    """
    result = decent(mpirun(2, "python", "-c", program, timeout=100))
    assert result.status == 1 and " failures" in result.out and "bus bandwidth" not in result.out, result
    assert len(result.out.splitlines()) < 30, result


def test_main_job_validates_and_times(cli):
    result = cli(2, timeout=150)
    lines = result.out.splitlines()
    assert result.status == 0 and result.own == [], result
    first = r"hpcreduce \S+: (Open MPI|MPICH) [\d.]+ \(MPI \d\.\d\), 2 ranks on 1 node, .*GPU"
    assert re.match(first, lines[0]), lines[0]
    assert re.match(r"validation: \d{3,} cases on 2 ranks, 0 failures", lines[1]), lines[1]
    groups = [block.split("\n") for block in re.split(r"\n(?= *\d+ (?:B|KiB|MiB)  )", result.out.rstrip())[1:]]
    sizes = [re.match(r" *(\d+ \w+)  ", group[0])[1] for group in groups]
    assert sizes == ["8 B", "1 KiB", "64 KiB", "1 MiB", "10 MiB", "100 MiB"], result.out
    for group in groups:
        names = [re.match(r"(?: *\d+ [KM]?i?B)? +(\w+) .*/s .*x", line)[1] for line in group]
        assert names[0] == "mpi" and {"mpi", "ring", "tree"} <= set(names) and len(names) == len(set(names)), group
        assert sum("fastest" in line for line in group) == sum("(auto)" in line for line in group) == 1, group
        assert all(len(line) <= 120 for line in group)


def test_json_has_the_documented_keys(many, folder):
    full = ["validate", "--full", "--ops", "sum", "--dtypes", "int8,>f8,longdouble"]
    found = many(3, [[*SMALL, "--json", "-"], [*SMALL, "--json", "a b.json"], full, [*full, "--json", "-"], [*SMALL]])
    assert all(said.statuses == [0] * 3 and not any(said.errs) for said in found), found
    documents = strict(found[0].outs[0]), strict((folder / "a b.json").read_text()), strict(found[3].outs[0])
    for document in documents:
        assert set(document) == {"ranks", "cases", "failures", "worst_ulp"}
        assert document["ranks"] == 3 and document["cases"] > 10 and document["failures"] == []
    assert documents[0] == documents[1]
    assert set(documents[0]["worst_ulp"]) >= {"ring", "tree", "mpi", "MPI_Allreduce"}
    assert all(0 < ulp <= 2 and math.isfinite(ulp) for ulp in documents[0]["worst_ulp"].values())
    assert documents[0]["cases"] < documents[2]["cases"] and f"{documents[2]['cases']} cases on 3" in found[2].outs[0]
    assert found[1].outs[0] == found[4].outs[0] != "" and "0 failures" in found[4].outs[0]


def test_choices_are_kept(many):
    chosen = ["validate", "--ops", "sum,prod", "--dtypes", "int32", "--counts", "5", "--json", "-"]
    found = many(2, [[*chosen, "--algorithms", names] for names in ("ring", "ring,tree", " ring , tree,auto ")])
    cases = [strict(said.outs[0])["cases"] for said in found]
    assert cases == [4, 8, 12]  # two operations, in place and out of place


def test_nothing_to_validate_is_no_success(many, folder):
    nothing = ["validate", "--ops", "band", "--dtypes", "float64"]
    text, document = many(2, [nothing, [*nothing, "--json", "-"]])
    for said in text, document:
        assert said.statuses == [1, 1] and not any(said.errs), said
    assert "no case" in text.outs[0] and strict(document.outs[0])["cases"] == 0


def test_H14_findings_that_cannot_be_written(many, cli, folder):
    (folder / "file").write_text("kept")
    (folder / "place").mkdir()
    paths = {"no/such/out.json": "No such", "file/out.json": "Not a directory", "place": "directory"}
    found = many(3, [[*SMALL, "--json", path] for path in paths])
    for said, (path, word) in zip(found, paths.items(), strict=True):
        refused_by_all(said, 1, path, word)
    result = refused(cli(3, *SMALL, "--json", "no/such/out.json"), 1, "no/such/out.json")
    assert result.seconds < 20
    assert (folder / "file").read_text() == "kept" and {*os.listdir(folder)} == {"file", "place"}


def test_H14_findings_go_through_pipes_and_links(start, folder):
    """A pipe or a device is written to, never replaced; a link stays one."""
    os.mkfifo(folder / "pipe")
    (folder / "target.json").write_text("old")
    (folder / "link.json").symlink_to("target.json")
    read = []
    reader = threading.Thread(target=lambda: read.append(read_some(folder / "pipe")), daemon=True)
    reader.start()
    for path in "pipe", "link.json":
        result = decent(start(*HPCREDUCE, *SMALL, "--json", path).wait(30))
        assert result.status == 0, result
    assert (folder / "pipe").is_fifo() and (folder / "link.json").is_symlink()
    assert strict((folder / "target.json").read_text())["ranks"] == 1
    reader.join(5)
    assert read and strict(read[0])["ranks"] == 1


def read_some(path):
    """Read a pipe to its end."""
    with open(path) as file:
        return file.read()
