"""Every script that is shipped, on 1, 2 and 4 nodes."""

import csv
import json
import re

import numpy as np
import pytest
from conftest import NODES, PROGRAM, ROOT

SIZES = [(1, 2), (2, 1), (4, 1)]
"""Nodes, and ranks on each."""
SMALL = ("--sizes", "8,64K", "--algorithms", "ring", "--iterations", "3")


@pytest.fixture(scope="session")
def shipped(slurm):
    """Submit everything at once, and return script, nodes -> what came of it, and the job's folder."""
    table = "\n".join(["name,value", *(f"{'ab'[i % 2]},{i * i}" for i in range(1000))])
    (slurm.folder / "data").mkdir()
    for part in range(3):
        (slurm.folder / "data" / f"{part}.csv").write_text(table)
    jobs = {}
    for nodes, ranks in SIZES:
        size = {"nodes": nodes, "ranks": ranks}
        (slurm.folder / f"train of {nodes}").mkdir()
        jobs["validate", nodes] = slurm.script("validate.sbatch", "--ops", "sum", "--counts", "1,13", **size)
        alone = ["--dependency=singleton"]  # of its name: tune gets nowhere beside many
        jobs["bench", nodes] = slurm.script("bench.sbatch", *SMALL, **size, options=alone, env={"BUDGET": "4s"})
        jobs["stats", nodes] = slurm.script("stats.sbatch", "data", "--columns", "value", **size)
        jobs["train", nodes] = slurm.script("train.sbatch", PROGRAM, f"train of {nodes}", "quick", **size)
        jobs["sweep", nodes] = sweep = slurm.script("array.sbatch", *SMALL, **size, options=["--array=3"])
        after = (f"--dependency=afterok:{sweep}", "--kill-on-invalid-dep=yes")
        jobs["merge", nodes] = slurm.submit(*after, ROOT / "slurm" / "merge.sbatch", sweep)
    ended = slurm.wait(*jobs.values())
    return {key: (end, slurm.folder / f"{key[0]}-{job}") for (key, job), end in zip(jobs.items(), ended, strict=True)}


@pytest.mark.parametrize(("nodes", "ranks"), SIZES)
@pytest.mark.parametrize("kind", ["validate", "bench", "stats", "train", "sweep"])
def test_job_ends_well(shipped, kind, nodes, ranks):
    ended, folder = shipped[kind, nodes]
    assert (ended.state, ended.status, ended.errors) == ("COMPLETED", 0, []), ended
    assert f"ranks: {nodes * ranks}, CPUs of each: 1, nodes: {nodes} (" in ended.text, ended
    assert "started by mpirun" in ended.text and f"finished on {nodes * ranks} ranks" in ended.text, ended
    assert kind == "sweep" or (folder / "finished").read_text() == f"{nodes * ranks}\n"
    assert "Traceback" not in ended.text, ended


@pytest.mark.parametrize(("nodes", "ranks"), SIZES)
def test_results(shipped, slurm, nodes, ranks):
    found = shipped["validate", nodes][0].text
    assert re.search(rf"validation: [1-9]\d* cases on {nodes * ranks} ranks, 0 failures", found), found

    folder = shipped["bench", nodes][1]
    figures = json.loads((folder / "bench.json").read_text())
    assert (figures["ranks"], figures["nodes"]) == (nodes * ranks, nodes)
    assert json.loads((folder / "table.json").read_text()) and (folder / "bench.png").stat().st_size > 1000

    folder = shipped["stats", nodes][1]
    figures = json.loads((folder / "stats.json").read_text())
    values = [i * i for i in range(1000)] * 3
    assert figures["ranks"] == nodes * ranks and figures["columns"]["value"]["sum"] == sum(values)
    assert next(csv.DictReader((folder / "stats.csv").open()))["count"] == "3000"

    value = 1
    for step in range(60):
        value = sum((value * 31 + rank * step) % 1_000_003 for rank in range(nodes * ranks))
    assert int((slurm.folder / f"train of {nodes}" / "result").read_text()) == value


@pytest.mark.parametrize(("nodes", "ranks"), SIZES)
def test_array_and_the_job_after_it(shipped, nodes, ranks):
    ended = shipped["merge", nodes][0]
    assert (ended.state, ended.status) == ("COMPLETED", 0), ended
    rows = list(csv.DictReader((shipped["sweep", nodes][1] / "bench.csv").open()))
    assert {(row["dtype"], row["op"], row["ranks"]) for row in rows} == {("float64", "max", str(nodes * ranks))}
    assert len(rows) == 4 and not list(shipped["sweep", nodes][1].glob("*.part"))


def test_job_after_an_array_that_fails_goes_by_itself(slurm):
    sweep = slurm.script("array.sbatch", "--sizes", "none", options=["--array=0-1"])
    after = (f"--dependency=afterok:{sweep}", "--kill-on-invalid-dep=yes")
    merge = slurm.submit(*after, ROOT / "slurm" / "merge.sbatch", sweep)
    failed, cancelled = slurm.wait(sweep, merge)
    assert failed.state == "FAILED" and len(failed.errors) == 4 and "is no size" in failed.errors[0], failed
    assert cancelled.state == "CANCELLED" and not (slurm.folder / f"sweep-{sweep}").exists(), cancelled


def test_gpu_script_says_that_there_are_none(slurm):
    """Whose nodes have no GPUs: it is stopped before the ranks are."""
    ended = slurm.wait(slurm.script("gpu.sbatch", options=["--gpus-per-node=0"]))[0]
    assert ended.state == "FAILED" and "as many --ntasks-per-node as --gpus-per-node" in ended.errors[0], ended


def test_made_script_from_login_node_to_result(slurm):
    """By the command sbatch, from a folder without slurm/."""
    np.save(slurm.folder / "whole.npy", np.arange(1000.0))
    words = ("python", "-m", "hpcreduce", "sbatch", "stats", "whole.npy", "--nodes", 2, "--ntasks-per-node", 1)
    words += ("--submit", "--job-name", "made", "--", "--ddof", 0)
    said = slurm.run("sh", "-c", 'cd "$0" && exec "$@"', slurm.folder, *words)
    job = int(re.match(r"job (\d+): ", said.stdout)[1])
    ended = slurm.wait(job)[0]
    assert (ended.state, ended.errors) == ("COMPLETED", []), ended
    (column,) = json.loads((slurm.folder / f"made-{job}" / "stats.json").read_text())["columns"].values()
    assert (column["count"], column["mean"]) == (1000, 499.5)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("validate", "--partition", "nosuch"), ("unknown partition nosuch", "main")),
        (("validate", "--nodes", "1", "--ntasks-per-node", "99"), ("99 CPUs on a node are more than the 4",)),
        (("validate", "--nodes", str(NODES + 1)), (f"{NODES + 1} nodes are more than the {NODES}",)),
    ],
)
def test_submission_that_slurm_refuses(slurm, words, said):
    done = slurm.run("python", "-m", "hpcreduce", "sbatch", *words, "--submit", status=1)
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1, done
    assert all(word in done.stderr for word in said), done
