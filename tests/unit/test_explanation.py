"""What is explained is what is done: the algorithm that ``auto`` takes, exact rounds and bytes, predicted times."""

import numpy as np
import pytest

from hpcreduce.algorithms import ALGORITHMS
from hpcreduce.analysis import cost
from hpcreduce.analysis.check import check
from hpcreduce.explanation import Model, explanation, read_model
from hpcreduce.measure import fit
from hpcreduce.runtime.operations import OPERATIONS
from hpcreduce.selection import choose

MODEL = Model(cost.Link(1e-5, 1e-9), cost.Link(1e-6, 1e-10), 1e-10)


def explained(nodes, count, dtype="float64", op="sum"):
    return explanation(nodes, count, np.dtype(dtype), OPERATIONS[op], MODEL)


@pytest.mark.parametrize("count", [0, 1, 1000, 1_000_000])
@pytest.mark.parametrize("nodes", [(0,), (0, 0, 0), (0, 0, 1, 1, 1), tuple(range(7))])
@pytest.mark.parametrize("dtype, op", [("float64", "sum"), ("float32", "max"), ("float16", "mean"), ("int32", "bor")])
def test_names_what_auto_takes(count, nodes, dtype, op):
    found = explained(nodes, count, dtype, op)
    work = OPERATIONS[op].types(np.dtype(dtype))[0]
    choice = choose("auto", None, OPERATIONS[op], work, count, nodes)
    assert (found.algorithm, found.reason) == (choice.algorithm.name, choice.reason)
    assert (found.ranks, found.nodes, found.nbytes) == (len(nodes), len(set(nodes)), count * np.dtype(dtype).itemsize)
    assert [line.algorithm for line in found.lines] == list(ALGORITHMS)
    text = str(found)
    assert found.reason in text and text.count("<- auto") == 1
    assert all(name in text for name in ALGORITHMS)


def test_rounds_and_bytes_are_those_of_the_schedule():
    for size in (1, 2, 3, 7):
        for line in explained((0,) * size, 100).lines:
            if line.rounds is not None:
                proof = check(line.algorithm, size, 100, segments=(None,), windows=(1,))
                assert (line.rounds, line.nbytes) == (proof.rounds, 8 * proof.volume)


def test_times_are_those_of_the_model():
    lines = {line.algorithm: line for line in explained((0, 0, 0), 5000).lines}
    for name in ("ring", "tree", "circulant"):
        assert lines[name].seconds == pytest.approx(
            cost.simulate(name, 3, 5000, alpha=1e-6, beta=1e-10, gamma=1e-10).seconds, rel=1e-9
        )
    lines = {line.algorithm: line for line in explained((0, 1, 2), 5000).lines}
    assert lines["ring"].seconds == pytest.approx(
        cost.simulate("ring", 3, 5000, alpha=1e-5, beta=1e-9, gamma=1e-10).seconds, rel=1e-9
    )
    assert lines["mpi"].seconds is None and lines["mpi"].rounds is None


def test_ranks_of_a_node_share_its_link():
    """Then what sends least between nodes wins; where ranks are placed in turn, circulant's long steps stay inside."""
    blocks = {line.algorithm: line.seconds for line in explained((0, 0, 0, 0, 1, 1, 1, 1), 1_000_000).lines}
    assert blocks["hierarchical"] < min(blocks["circulant"], blocks["direct"], blocks["recursive_doubling"])
    in_turn = {line.algorithm: line.seconds for line in explained((0, 1, 0, 1, 0, 1, 0, 1), 1_000_000).lines}
    assert in_turn["hierarchical"] == blocks["hierarchical"] and in_turn["circulant"] < in_turn["hierarchical"]


def test_models(tmp_path):
    (tmp_path / "fit.json").write_text(
        '{"hosts": ["a", "b"], "links": [{"a": "a", "b": "s", "bandwidth": 1e8, "latency": 1e-6},'
        ' {"a": "b", "b": "s", "bandwidth": 2e8, "latency": 0}], "alpha": 3e-6, "gamma": 2e-10,'
        ' "inside": {"alpha": 1e-6, "beta": 1e-10}, "gammas": {"float32": 1}}'
    )
    found = read_model(str(tmp_path / "fit.json"))
    assert found == Model(cost.Link(pytest.approx(5e-6), 1e-8), cost.Link(1e-6, 1e-10), 2e-10)
    with pytest.raises(ValueError, match="missing"):
        read_model(str(tmp_path / "missing.json"))


def test_what_cannot_run_is_said():
    lines = {line.algorithm: line for line in explained((0, 0, 0), 10, "float64", "max").lines}
    assert "does not give our meaning" in lines["mpi"].refusal and not lines["ring"].refusal
    assert "does not give our meaning" in str(explained((0, 0, 0), 10, "float64", "max"))


def test_long_schedules_are_not_simulated():
    lines = {line.algorithm: line for line in explained((0,) * 1000, 1000).lines}
    assert lines["ring"].seconds is None and lines["ring"].rounds == 1998 and lines["rabenseifner"].seconds > 0


def test_fit_sends_what_it_prices():
    first, second = (list(fit.to_and_fro(rank, 2, 9)) for rank in range(2))
    assert len(first) == len(second) == 2 * fit.TURNS
    for turn, (one, two) in enumerate(zip(first, second, strict=True)):
        assert (type(one[0]).__name__, type(two[0]).__name__) == (("Send", "Recv"), ("Recv", "Send"))[turn % 2]
        assert one[0].span == two[0].span == (0, 0)
    assert [verbs[0].span for verbs in fit.one_way(0, 2, 9)] == [(0, 9), (0, 0)]
