"""Batch scripts as text, the scripts in slurm/, and what info says of Slurm: no Slurm, no MPI."""

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from hpcreduce import commands
from hpcreduce.batch import KINDS, script
from hpcreduce.errors import BatchError
from hpcreduce.measure.slurm import Seat, facts, warnings

SLURM = Path(__file__).parents[2] / "slurm"
SCRIPTS = sorted(SLURM.glob("*.sbatch"))
ENV = (SLURM / "env.sh").read_text()
JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NAME": "it",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_TASKS_PER_NODE": "2(x2)",
    "SLURM_JOB_CPUS_PER_NODE": "4(x2)",
    "SLURM_NTASKS": "4",
}


def header(text):
    """Return the options of a script, and where the first command stands."""
    lines = text.splitlines()
    command = next(i for i, line in enumerate(lines) if line.strip() and not line.startswith("#"))
    options = [i for i, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert all(i < command for i in options), "what comes after the first command is ignored"
    return dict(re.match(r"#SBATCH --([a-z-]+)(?:=(.*))?$", lines[i]).groups("") for i in options)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_L09_shipped_scripts(path):
    """Options before commands, by their long names, ranks by nodes and ranks per node, no -c with -n."""
    text = path.read_text()
    options = header(text)
    assert {"job-name", "nodes", "time", "output"} < set(options)
    assert ("ntasks-per-node" in options) != ("ntasks" in options) and "cpus-per-task" not in options
    assert {"##SBATCH --account=YOURS", "##SBATCH --partition=YOURS"} <= set(text.splitlines())
    assert text.startswith("#!/bin/bash\n") and re.search(r"\bsrun\b", ENV)
    if path.stem != "merge":
        assert options["signal"] == "B:USR1@60" and re.search(r"^launch", text, re.MULTILINE)
    subprocess.run(["bash", "-n", path], check=True, timeout=20)


def made(kind="validate", options=None, **more):
    template = (SLURM / f"{kind}.sbatch").read_text()
    return script(template, ENV, options or {}, **more)


@pytest.mark.parametrize("kind", KINDS)
def test_made_script_is_whole(kind, tmp_path):
    asked = {"nodes": 3, "time": "02:00:00", "partition": "long", "qos": "high", "exclusive": ""}
    text = made(kind, asked, origin="me")
    options = header(text)
    assert options["nodes"] == "3" and options["time"] == "02:00:00" and options["partition"] == "long"
    assert options["exclusive"] == "" and options["ntasks-per-node"] == "4" and "account" not in options
    assert (
        "env.sh" not in text.replace(ENV.split("\n\n")[0], "") and "choose_launcher\n" in text and "Made by: me" in text
    )
    assert text.count("\nlaunch") >= 1 and text.endswith("\n")
    file = tmp_path / "script"
    file.write_text(text)
    subprocess.run(["bash", "-n", file], check=True, timeout=20)


def test_arguments_and_settings_are_words():
    words = ["a b", "$(touch x)", "it's", "--columns", "*"]
    text = made("stats", arguments=words, settings={"HPCREDUCE_VENV": "/my venv"})
    line = next(line for line in text.splitlines() if line.startswith("set -- "))
    shell = subprocess.run(["bash", "-c", f'{line}\nprintf "%s\\n" "$@"'], capture_output=True, text=True, timeout=20)
    assert shell.stdout.splitlines() == words
    assert "export HPCREDUCE_VENV='/my venv'" in text


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, {"nodes": "2", "ntasks-per-node": "4"}),
        ({"nodes": 8}, {"nodes": "8", "ntasks-per-node": "4"}),
        ({"ntasks": 6}, {"ntasks": "6"}),
        ({"ntasks": 6, "nodes": 4}, {"ntasks": "6", "nodes": "4"}),
        ({"ntasks": 6, "ntasks-per-node": 3}, {"ntasks": "6", "ntasks-per-node": "3"}),
        ({"ntasks": 6, "nodes": 2, "ntasks-per-node": 3}, {"ntasks": "6", "nodes": "2", "ntasks-per-node": "3"}),
    ],
)
def test_L09_nodes_and_tasks_go_together(options, kept):
    found = header(made(options=options))
    assert {name: found[name] for name in ("nodes", "ntasks", "ntasks-per-node") if name in found} == kept


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ntasks": 6, "nodes": 2, "ntasks-per-node": 4}, ("are 8 ranks, not --ntasks 6", "leave out one")),
        ({"ntasks": 3, "nodes": 4}, ("--ntasks 3", "--nodes 4")),
        ({"ntasks": 7, "ntasks-per-node": 2}, ("do not fill",)),
        ({"mem": "1G", "mem-per-cpu": "1G"}, ("exclude each other",)),
        ({"time": "2"}, ("too short", "3 minutes")),
        *(({"time": time}, ("is no time", time)) for time in ("soon", "0", "1:2:3:4", "-5", "1-", "٣")),
        *(({"partition": name}, ("--partition", repr(name))) for name in ("", " a", "a\nrm x", "a'b", 'a"b')),
    ],
)
def test_contradictions(options, words):
    with pytest.raises(BatchError) as caught:
        made(options=options)
    assert all(word in str(caught.value) for word in words), caught.value


def test_arguments_on_two_lines_are_refused():
    with pytest.raises(BatchError, match="printable"):
        made(arguments=["a\nb"])


@pytest.fixture
def cli(tmp_path, monkeypatch):
    """Run the command line in a folder; `sbatch` on PATH does this, and keeps what it gets."""
    monkeypatch.chdir(tmp_path)

    def cli(*words, sbatch=None):
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin" if sbatch else str(tmp_path))
        if sbatch:
            for name, does in {"sbatch": f"cat >got; {sbatch}", "sinfo": "echo 'main* 4 3'"}.items():
                (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
                (tmp_path / name).chmod(0o755)
        return CliRunner().invoke(commands.main, ["sbatch", *words], standalone_mode=False)

    return cli


def test_printed(cli):
    done = cli("validate", "--nodes", "4", "--ntasks-per-node", "32", "--option", "qos=high", "--", "--full")
    options = header(done.stdout)
    assert (options["nodes"], options["ntasks-per-node"], options["qos"]) == ("4", "32", "high")
    assert "\nset -- --full\n" in done.stdout
    assert sys.prefix == sys.base_prefix or f"export HPCREDUCE_VENV={sys.prefix}\n" in done.stdout


def test_submitted(cli, tmp_path):
    done = cli("stats", "data", "--submit", sbatch="echo 12")
    assert "no file, folder or pattern data" in str(done.exception), done
    (tmp_path / "data").mkdir()
    done = cli("stats", "data", "--time", "45", "--submit", sbatch="echo '12;cluster'")
    assert done.stdout == "job 12: squeue -j 12 shows it, scancel 12 ends it\n", done
    assert header((tmp_path / "got").read_text())["time"] == "45"
    assert "each node usually has for itself" in done.stderr or not str(tmp_path).startswith("/tmp")


@pytest.mark.parametrize(
    ("words", "sbatch", "said"),
    [
        (["bench", "--submit"], None, "no sbatch on PATH"),
        (
            ["bench", "--submit", "--partition", "x"],
            "echo 12",
            "unknown partition x: there are main",
        ),
        (
            ["bench", "--submit", "--ntasks-per-node", "99"],
            "echo 12",
            "99 CPUs on a node are more than the 4 of partition main",
        ),
        (["bench", "--submit", "--nodes", "4"], "echo 12", "4 nodes are more than the 3 of partition main"),
        (
            ["bench", "--submit", "--account", "x"],
            "echo 'sbatch: error: Invalid account' >&2; echo 'sbatch: error: failed' >&2; exit 1",
            "sbatch refuses the job: Invalid account; failed",
        ),
        (["bench", "--nodes", "0"], None, "--nodes"),
        (["bench", "--", "--nosuch"], None, "--nosuch"),
        (["validate", "--", "--ops", "nosuch"], None, "unknown op"),
        (["stats"], None, "expected files, folders or patterns"),
        (["train"], None, "expected a program"),
        (["bench", "--option", "time=3"], None, "use --time"),
        (["bench", "--option", "signal=B:USR1@5"], None, "it is set"),
        (["bench", "--option", "a b"], None, "no option of sbatch"),
        (["bench", "--ntasks", "3", "--nodes", "4"], None, "--ntasks 3"),
    ],
)
def test_refused(cli, words, sbatch, said):
    done = cli(*words, sbatch=sbatch)
    assert done.exception is not None and not done.stdout, done
    error = done.exception
    text = error.format_message() if isinstance(error, click.ClickException) else str(error)
    assert said in text and "\n" not in text.strip(), text


# env.sh, with stubs for python, srun and mpirun

PYTHON = """#!/bin/bash
case $1 in
    -) echo "${STUB_IMPORT:-$STUB_LIBRARY}"; [ -z "$STUB_IMPORT" ] ;;
esac
"""
SRUN = """#!/bin/bash
echo "srun $*" >>"$STUB_LOG"
[ "$1" = --mpi=list ] && { echo "MPI plugin types are... none pmi2 pmix"; exit; }
for size in $STUB_SIZES; do echo "$size"; done
"""
MPIRUN = """#!/bin/bash
echo "mpirun $*" >>"$STUB_LOG"
eval "$STUB_DOES"
"""


@pytest.fixture
def env(tmp_path):
    """Run shell code after env.sh, and return status, stderr, and what was started."""
    for name, text in {"python": PYTHON, "srun": SRUN, "mpirun": MPIRUN}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def env(code="true", **variables):
        log = tmp_path / "log"
        log.write_text("")
        environment = {
            "PATH": f"{tmp_path}:{os.defpath}",
            "STUB_LOG": str(log),
            "SLURM_SUBMIT_DIR": str(tmp_path),
        } | JOB
        environment |= {"STUB_LIBRARY": "Open MPI v5.0.11 of Python's environment", "STUB_SIZES": "2 2"} | variables
        words = ["bash", "-c", f"source '{SLURM}/env.sh'; {code}"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=30)
        return done.returncode, done.stderr + done.stdout, log.read_text().splitlines()

    return env


@pytest.mark.parametrize(
    ("library", "sizes", "variables", "launcher"),
    [
        ("Open MPI v5.0.11 of Python's environment", "2 2", {}, "mpirun -n 4, since it is not made for this Slurm"),
        ("Open MPI v4.1.6 of the system", "2 2", {}, "srun --mpi=pmix --kill-on-bad-exit=1, since two tasks found"),
        ("Open MPI v4.1.6 of the system", "1 1", {}, "mpirun -n 4, since srun has no PMI that fits it"),
        ("MPICH Version: 5.0.2 of Python's environment", "2 2", {}, "mpirun -n 4, since it is not made for this Slurm"),
        ("MPICH Version: 4.1 of the system", "2 2", {}, "srun --mpi=pmi2 --kill-on-bad-exit=1, since two"),
        ("MPICH Version: 5.0.2 of the system", "1 1", {}, "mpirun -n 4, since srun has no PMI"),
        ("MPICH of the system", "", {"HPCREDUCE_LAUNCHER": "srun --mpi=x"}, "srun --mpi=x, since HPCREDUCE_LAUNCHER"),
        (
            "Open MPI v5 of Python's environment",
            "",
            {"SLURM_CPUS_PER_TASK": "2"},
            "mpirun -n 4 --bind-to none, since it is",
        ),
    ],
)
def test_L01_launcher_is_chosen_by_trial(env, library, sizes, variables, launcher):
    status, said, _ = env(STUB_LIBRARY=library, STUB_SIZES=sizes, **variables)
    assert status == 0 and f"started by {launcher}" in said, said


def test_threads_are_those_of_the_cpus(env):
    names = "OMP_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS NUMBA_NUM_THREADS"
    code = f'for name in {names}; do echo "$name ${{!name}}"; done'
    said = env(code, SLURM_CPUS_PER_TASK="2")[1]
    assert all(f"{name} 2\n" in said for name in names.split()), said
    assert all(
        (
            f"-{number}-"
            in env('echo "-${SRUN_CPUS_PER_TASK:-}-"', HPCREDUCE_LAUNCHER=launcher, SLURM_CPUS_PER_TASK="2")[1]
        )
        for launcher, number in {"srun": "2", "mpirun": ""}.items()
    )
    assert "OMP_NUM_THREADS 1\n" in env(code)[1] and "OMP_NUM_THREADS 3\n" in env(code, OMP_NUM_THREADS="3")[1]


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"SLURM_JOB_ID": ""}, ("no job of Slurm", "sbatch")),
        ({"SLURM_STEP_ID": "0"}, ("inside a step of srun", "wait for ever", "sbatch")),
        ({"SLURM_JOB_CPUS_PER_NODE": "2,1"}, ("2 ranks of 1 CPUs", "has 1 CPUs", "--ntasks-per-node")),
        ({"SLURM_CPUS_PER_TASK": "3"}, ("2 ranks of 3 CPUs",)),
        ({"STUB_IMPORT": "No module named x"}, ("no hpcreduce", "(No module named x)", "HPCREDUCE_VENV")),
        ({"HPCREDUCE_MODULES": "nosuch"}, ("cannot load the module nosuch",)),
        ({"SLURM_SUBMIT_DIR": "/proc/nosuch"}, ("cannot make /proc/nosuch/it-7", "all nodes see")),
    ],
)
def test_L12_job_that_cannot_go_well_says_why(env, variables, words):
    status, said, started = env("launch true", **variables)
    errors = [line for line in said.splitlines() if line.startswith("hpcreduce: error: ")]
    assert status == 1 and len(errors) == 1 and not started, said
    assert all(word in errors[0] for word in words), said


@pytest.mark.parametrize(
    ("does", "status", "words"),
    [
        ('echo 4 >"$HPCREDUCE_FINISHED"', 0, "finished on 4 ranks"),
        ("true", 1, "did not say that it has finished"),
        ("exit 9", 9, "(mpirun ended with status 9)"),
        ('echo 1 >"$HPCREDUCE_FINISHED"', 1, "expected 4 ranks (SLURM_NTASKS), found a world of 1"),
        ('echo 4 >"$HPCREDUCE_FINISHED"; exit 3', 3, "has finished, but mpirun ended with status 3"),
        ("sleep 0.3; kill -USR1 $PPID; exec sleep 20", 138, "the time limit has stopped the program"),
        ("sleep 0.3; kill -TERM $PPID; exec sleep 20", 143, "a signal has stopped the program"),
        ("trap '' USR1; sleep 0.3; kill -USR1 $PPID; exec sleep 20", 143, "the time limit has stopped the program"),
    ],
)
def test_verdict(env, does, status, words):
    found, said, started = env('launch a "b c"', STUB_DOES=does, HPCREDUCE_PATIENCE="1")
    assert found == status and words in said and started == ["mpirun -n 4 a b c"], said


def test_signal_that_comes_before_the_ranks(env):
    status, said, _ = env("kill -USR1 $$; launch a", STUB_DOES="exec sleep 20")
    assert status == 143 and "the time limit has stopped the program" in said, said


def test_marker_of_an_earlier_run_does_not_count(env):
    code = 'echo 4 >"$HPCREDUCE_FINISHED"; launch a'
    assert env(code, STUB_DOES="true")[0] == 1


# What info says

APART = [Seat("n1", (0,)), Seat("n1", (1,)), Seat("n2", (0,)), Seat("n2", (1,))]


def test_facts():
    step = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "PMI_RANK": "0"}
    found = facts(JOB | step, APART)
    assert found["Slurm job"] == "7 (it)" and found["Slurm nodes"] == "2: n[1-2]"
    assert found["Slurm tasks"] == "4" and found["launcher"] == "srun, PMI: PMI"
    assert found["binding"] == "1 processor for each rank, its own"
    daemons = JOB | {"SLURM_NTASKS": "2", "SLURM_STEP_ID": "1", "PMI_RANK": "0", "PMI_SIZE": "4"}
    assert (
        facts(daemons, APART)["Slurm tasks"] == "not told" and warnings(daemons | {"OMP_NUM_THREADS": "1"}, APART) == []
    )
    assert facts(daemons | {"HPCREDUCE_TASKS": "4"}, APART)["Slurm tasks"] == "4"
    assert facts(JOB, [Seat("n1", (0, 1))] * 2)["binding"] == "2 processors for each rank, shared with others"


@pytest.mark.parametrize(
    ("more", "seats", "words"),
    [
        ({}, APART, ()),
        ({"SLURM_NTASKS": "8"}, APART, ("expected 8 ranks (SLURM_NTASKS), found 4",)),
        ({"SLURM_JOB_NUM_NODES": "3"}, APART, ("ranks run on 2 of 3 nodes",)),
        ({}, [Seat("n1", (0,))] * 2 + APART[2:], ("2 ranks share 1 processor of n1",)),
        ({"SLURM_CPUS_PER_TASK": "2"}, APART, ("--cpus-per-task is 2, and a rank may use 1", "SRUN_CPUS_PER_TASK")),
        ({"OMP_NUM_THREADS": "8"}, APART, ("OMP_NUM_THREADS is 8",)),
        ({"OMP_NUM_THREADS": ""}, APART, ("OMP_NUM_THREADS is not set",)),
    ],
)
def test_warnings(more, seats, words):
    found = warnings(JOB | {"OMP_NUM_THREADS": "1"} | more, seats)
    assert len(found) == bool(words) and all(word in found[0] for word in words), found
    assert warnings({}, seats) == []
