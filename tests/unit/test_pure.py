"""What importing costs, and what every public name owes its reader."""

import doctest
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hpcreduce
from hpcreduce.algorithms import ALGORITHMS, Algorithm

PURE = (
    "schedule algorithms analysis.check analysis.cost analysis.draw analysis.predict selection lookup collectives many"
)
PURE += (
    " runtime.plan runtime.agreement commands diagnosis gradients"
    " stats stats.moments stats.describe stats.records stats.elements stats.sources"
)
HEAVY = {"mpi4py.MPI", "cupy", "rich", "torch", "ml_dtypes", "matplotlib", "numba", "pyarrow", "h5py"}
MODULES = [
    module.name for module in pkgutil.walk_packages(hpcreduce.__path__, "hpcreduce.") if "__main__" not in module.name
]


@pytest.mark.parametrize("module", ["hpcreduce", *(f"hpcreduce.{name}" for name in PURE.split())])
def test_importing_needs_no_mpi(module):
    program = f"""
import sys
from pathlib import Path
sys.modules["mpi4py"] = None  # importing it raises
import {module}
heavy = {HEAVY} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_nothing_points_back():
    """Who comes later in the flow is not imported by those before."""
    last = ("gradients", "stats", "measure", "commands")
    later = {"gradients": last[2:], "stats": last[2:], "objects": last, "collectives": ("related", "objects", *last)}
    later |= {"related": last, "many": last, "preparation": ("collectives", "many", "related", "objects", *last)}
    later["runtime"] = ("preparation", *later["preparation"])
    for name in MODULES:
        text = inspect.getsource(importlib.import_module(name))
        for other in later.get(name.split(".")[1], ()):
            found = re.findall(rf"^from hpcreduce(?:\.{other}\b.*| import (?:.*, )?{other}\b.*)", text, re.MULTILINE)
            assert not found, f"{name}: {found}"


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_has_a_docstring(name):
    module = importlib.import_module(name)
    assert module.__doc__
    for public, value in vars(module).items():
        if not public.startswith("_") and getattr(value, "__module__", None) == name and callable(value):
            assert inspect.getdoc(value), f"{name}.{public}"


def test_the_readme_is_true():
    readme = Path(__file__).parents[2] / "README.md"
    assert doctest.testfile(str(readme), module_relative=False).failed == 0
    for name in ALGORITHMS:
        assert f"| `{name}` |" in readme.read_text()


def test_public_interface_documents_parameters_returns_and_errors():
    text = inspect.getdoc(hpcreduce.allreduce)
    for section in ("Parameters", "Returns", "Raises", "Examples"):
        assert f"{section}\n{'-' * len(section)}" in text
    for parameter in inspect.signature(hpcreduce.allreduce).parameters:
        assert f"{parameter} :" in text


def test_rows_are_complete():
    for name, row in ALGORITHMS.items():
        assert isinstance(row, Algorithm) and row.name == name
        assert row.description and row.source and row.cost
        assert (row.rounds is None) == (row.round_count is None) == (row.volume is None)
        if row.rounds:
            assert "Four ranks" in inspect.getdoc(row.rounds)


def test_statistics_are_there_on_first_use():
    program = (
        "import sys, hpcreduce; assert 'hpcreduce.stats' not in sys.modules; assert callable(hpcreduce.stats.describe)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
