"""``draw``: tables and diagrams, with and without ranks or an MPI library."""

import os
from xml.etree import ElementTree

import pytest
from launching import decent, refused, refused_by_all

from hpcreduce.analysis import draw

BAD_USAGE = {
    "name": (["draw", "rong", "--ranks", "4"], "rong", "rabenseifner"),
    "no schedule": (["draw", "mpi", "--ranks", "4"], "mpi", "no schedule"),
    "no name": (["draw", "--ranks", "4"], "NAME"),
    "no ranks": (["draw", "ring"], "--ranks"),
    "zero ranks": (["draw", "ring", "--ranks", "0"], "--ranks"),
    "many ranks": (["draw", "ring", "--ranks", "100000"], "--ranks"),
    "word for ranks": (["draw", "ring", "--ranks", "four"], "--ranks", "four"),
    "negative count": (["draw", "ring", "--ranks", "4", "--count", "-1"], "--count"),
    "node": (["draw", "ring", "--ranks", "4", "--nodes", "0,0,x,1"], "--nodes", "0,0,x,1"),
    "nodes of ring": (["draw", "ring", "--ranks", "4", "--nodes", "0,0,1,1"], "ring takes no nodes"),
    "nodes of some ranks": (["draw", "hierarchical", "--ranks", "4", "--nodes", "0,0,1"], "nodes", "4 ranks, found 3"),
    "across": (["draw", "hierarchical", "--ranks", "4", "--across", "rong"], "across", "rong", "ring"),
    "across of ring": (["draw", "ring", "--ranks", "4", "--across", "tree"], "ring takes no across"),
    "root": (["draw", "bcast", "--ranks", "4", "--root", "4"], "root", "0 to 3"),
    "root of ring": (["draw", "ring", "--ranks", "4", "--root", "1"], "ring takes no root"),
    "order of ring": (["draw", "ring", "--ranks", "4", "--any-order"], "ring takes no ordered"),
}


def test_table_without_an_mpi_library(cli, stub):
    result = cli(0, "draw", "ring", "--ranks", "8", paths=[stub])
    assert (result.status, result.err) == (0, ""), result
    assert result.out == draw.text("ring", 8) + "\n"


def test_options_reach_the_drawing(cli):
    result = cli(0, "draw", "reduce", "--ranks", "5", "--count", "7", "--root", "3", "--any-order")
    assert result.status == 0 and result.out == draw.text("reduce", 5, 7, root=3, ordered=False) + "\n"
    result = cli(0, "draw", "hierarchical", "--ranks", "5", "--nodes", "0,1,0,1,2", "--across", "ring")
    assert (
        result.status == 0 and result.out == draw.text("hierarchical", 5, nodes=(0, 1, 0, 1, 2), across="ring") + "\n"
    )


def test_diagram_is_written_whole_without_an_mpi_library(cli, folder, stub):
    result = cli(0, "draw", "tree", "--ranks", "4", "--svg", "tree.svg", paths=[stub])
    assert result.status == 0 and result.out == draw.text("tree", 4) + "\n", result
    assert (folder / "tree.svg").read_text() == draw.svg("tree", 4)
    assert ElementTree.parse(folder / "tree.svg").getroot().tag.endswith("svg")
    assert os.listdir(folder) == ["tree.svg"]


@pytest.mark.parametrize("ranks", [0, 2])
def test_diagram_that_cannot_be_written(cli, folder, ranks):
    result = cli(ranks, "draw", "tree", "--ranks", "4", "--svg", "no such folder/tree.svg")
    refused(result, 1, "cannot write no such folder/tree.svg: No such file or directory")
    assert result.seconds < 15 and not os.listdir(folder)


def test_one_rank_draws(cli, folder, stub):
    for paths in [], [stub]:
        result = cli(2, "draw", "ring", "--ranks", "4", "--svg", "ring.svg", paths=paths)
        assert result.status == 0 and result.out == draw.text("ring", 4) + "\n", result
        assert (folder / "ring.svg").read_text() == draw.svg("ring", 4)
        (folder / "ring.svg").unlink()


def test_one_rank_opens_the_diagram(many, folder):
    (said,) = many(3, [["draw", "ring", "--ranks", "4", "--svg", "ring.svg"]])
    assert said.statuses == [0] * 3 and not any(said.outs[1:]) and not any(said.errs), said
    assert len(said.opened[0]) == 1 and not any(said.opened[1:]), said
    assert os.listdir(folder) == ["ring.svg"]


def test_bad_usage_is_said_once(many):
    found = many(3, [command for command, *_ in BAD_USAGE.values()])
    for said, (_, *words) in zip(found, BAD_USAGE.values(), strict=True):
        refused_by_all(said, 2, *words, "draw --help")
        assert len(said.errs[0].splitlines()) == 2, said


def test_bad_usage_without_an_mpi_library(cli, stub):
    refused(cli(0, "draw", "rong", "--ranks", "4", paths=[stub]), 2, "rong", "ring")


def test_reader_of_the_table_that_has_gone(start):
    reading, writing = os.pipe()
    os.close(reading)
    job = start("python", "-m", "hpcreduce", "draw", "ring", "--ranks", "4", stdout=writing)
    os.close(writing)
    result = decent(job.wait(60))
    assert result.status not in (0, 120) and "terminated" not in result.err, result
