"""``explain`` and ``fit``: prices that are measured, and what they predict."""

import json

import pytest
from launching import refused, refused_by_all

from hpcreduce.algorithms import ALGORITHMS


def test_explain_needs_no_library(cli, folder):
    """Without mpirun, in a second, for more ranks than there are."""
    result = cli(0, "explain", "--ranks", "48", "--nbytes", "1K,1M", "--nodes", "4", timeout=30)
    assert result.status == 0 and result.err == "", result
    first, second = result.out.split("\n\n")
    assert first.startswith("sum of 1024 bytes of float64 on 48 ranks, 4 nodes: auto takes mpi: below")
    assert second.startswith("sum of 1048576 bytes")
    for text in (first, second):
        lines = text.strip().splitlines()
        assert [line.split()[0] for line in lines[2:]] == list(ALGORITHMS)
        assert sum("<- auto" in line for line in lines) == 1


def test_explain_as_json(cli, folder):
    result = cli(0, "explain", "--ranks", "3", "--nbytes", "8", "--op", "max", "--json", "-")
    (document,) = json.loads(result.out)
    assert (document["ranks"], document["nodes"], document["op"], document["algorithm"]) == (3, 1, "max", "shared")
    ring = next(line for line in document["lines"] if line["algorithm"] == "ring")
    assert (ring["rounds"], ring["nbytes"], ring["refusal"]) == (4, 16, "") and ring["seconds"] > 0
    result = cli(0, "explain", "--ranks", "3", "--nbytes", "8", "--json", "out.json")
    assert "auto takes" in result.out and json.loads((folder / "out.json").read_text())[0]["ranks"] == 3


def test_explain_under_mpirun_is_printed_and_written_once(many, folder):
    explain = ["explain", "--ranks", "3", "--nbytes", "8"]
    (said,) = many(3, [[*explain, "--json", "out.json"]])
    assert said.statuses == [0] * 3 and said.outs[0] and not any(said.outs[1:]) and not any(said.errs), said
    assert said.opened[0] and not any(said.opened[1:]), said
    assert json.loads((folder / "out.json").read_text())[0]["ranks"] == 3


@pytest.mark.timed
def test_fit_is_read_by_predict_and_explain(cli, folder):
    result = cli(3, "fit", "--repeats", "3", "-o", "fit.json")
    assert result.status == 0 and "inside a node: alpha" in result.out and "ns/byte" in result.out, result
    assert "not measured, since all ranks are on one node" in result.err
    found = json.loads((folder / "fit.json").read_text())
    assert found["ranks_per_host"] == 3 and len(found["hosts"]) == 1 and found["links"] == []
    assert 1e-7 < found["inside"]["alpha"] < 0.1 and 1e-12 < found["inside"]["beta"] < 1e-6
    assert 1e-13 < found["gamma"] == found["gammas"]["float64"] < 1e-7 and "float16" in found["gammas"]
    result = cli(0, "predict", "--network", "fit.json", "--ranks", "3", "--sizes", "1M", "--json", "-")
    rows = {row["algorithm"]: row["seconds"] for row in json.loads(result.out)["rows"]}
    beta, gamma = found["inside"]["beta"], found["gamma"]
    assert rows["ring"] == pytest.approx(
        4 * found["inside"]["alpha"] + (1 << 20) / 3 * (4 * beta + 2 * gamma), rel=0.01
    )
    result = cli(0, "explain", "--ranks", "3", "--nbytes", "1M", "--model", "fit.json", "--json", "-")
    lines = {line["algorithm"]: line["seconds"] for line in json.loads(result.out)[0]["lines"]}
    assert lines["ring"] == pytest.approx(rows["ring"], rel=0.01)


def test_bad_input(cli, many, folder):
    (folder / "no.json").write_text("{}")
    refused_by_all(*many(2, [["fit", "-o", "no/fit.json"]]), 1, "cannot write no/fit.json")
    refused(cli(1, "fit"), 1, "two ranks at least")
    for options, status, words in (
        (["--ranks", "0", "--nbytes", "8"], 2, "0 is not in the range"),
        (["--ranks", "3"], 2, "--nbytes"),
        (["--ranks", "3", "--nbytes", "-8"], 2, "no size"),
        (["--ranks", "3", "--nbytes", "8", "--nodes", "4"], 2, "4 nodes for 3 ranks"),
        (["--ranks", "3", "--nbytes", "8", "--dtype", "float63"], 2, "unknown dtype"),
        (["--ranks", "3", "--nbytes", "8", "--op", "max", "--dtype", "complex64"], 2, "does not take dtype"),
        (["--ranks", "3", "--nbytes", "8", "--model", "missing.json"], 1, "missing.json"),
        (["--ranks", "3", "--nbytes", "8", "--model", "no.json"], 1, "hosts"),
        (["--ranks", "3", "--nbytes", "8", "--json", "no/out.json"], 1, "cannot write no/out.json"),
    ):
        refused(cli(0, "explain", *options), status, words)
