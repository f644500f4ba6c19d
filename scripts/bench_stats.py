#!/usr/bin/env python
"""Time `stats` beside DuckDB, Polars and reading alone, on the same Parquet files; all take turns.

    python scripts/bench_stats.py [--rows 20M] [--contenders A,B] [--rivals PYTHON] [--json FILE]

The data are 8 Parquet files of 5 columns of float64: four of random numbers, one of few values. Every contender
computes count, sum, mean, variance, minimum and maximum of all columns: ours on 2 ranks, the rivals on 2 threads. A
time is that of the work inside a process that has already imported its libraries, started MPI and described small
files; of ranks, the slowest one's. `read` is pyarrow alone on 2 ranks, `batches` what `stats` reads with, and `first`
the small files: what a process pays once. `quartiles` is three exact quantiles of each column besides, `few` and `many`
are the figures of 10 and of 100,000 groups (ours besides those of all rows). Medians; the ratio is the median over the
rounds of time / time of ours, which is that of `exact` unless the name says another.

--rivals (or HPCREDUCE_RIVALS) names a Python that has duckdb and polars; those that are missing are left out.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve()
FILES, COLUMNS, RANKS = 8, "abcde", 2
KEYS = {"few": 10, "many": 100_000}
OURS = ("exact", "fast", "batches", "read", "quartiles", *KEYS)
RIVALS = ("duckdb", "polars", "duckdb quartiles", "duckdb few", "duckdb many")
OPTIONS = {"exact": [], "fast": ["--fast"], "quartiles": ["--quantiles", "0.25,0.5,0.75"]}
OPTIONS |= {key: ["--by", key] for key in KEYS}
SMALL = 100_000
"""Rows of each small file: enough for every rank to load the compiled loops."""


def make(folder, rows):
    """Write the files, unless they are there from an earlier run with as many rows."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    for index in range(FILES):
        for path, count in ((folder / f"{index}.parquet", rows // FILES), (folder / f"small{index}.parquet", SMALL)):
            if path.exists() and pq.read_metadata(path).num_rows == count:
                continue
            random = np.random.default_rng(index)
            values = [random.standard_normal(count) * 10.0**power + 10**power for power in range(4)]
            values.append(random.integers(0, 1000, count) / 8)
            keys = {key: random.integers(0, groups, count) for key, groups in KEYS.items()}
            pq.write_table(pa.table(dict(zip(COLUMNS, values, strict=True)) | keys), path)
    return [str(folder / f"{index}.parquet") for index in range(FILES)]


def ours(name, folder, files):
    """Run one of ours on these ranks; rank 0 prints the seconds of the slowest rank, and those of the small files."""
    from mpi4py import MPI

    import hpcreduce.commands
    from hpcreduce.stats import sources

    comm = MPI.COMM_WORLD

    def described(paths):
        more = ["--columns", ",".join(COLUMNS), "--quantiles", "none", *OPTIONS[name]]
        written = ["--output", str(folder / "groups.csv")] if name in KEYS else ["--json", str(folder / "found.json")]
        if hpcreduce.commands.run(["stats", *paths, *more, *written]):
            sys.exit(1)

    def batches(paths):
        for _ in sources.find(comm, paths).batches(list(COLUMNS)):
            pass

    def read(paths):
        import pyarrow.parquet as pq

        for path in paths[comm.rank :: comm.size]:
            with pq.ParquetFile(path) as file:
                for group in range(file.num_row_groups):
                    file.read_row_group(group, list(COLUMNS), use_threads=False)

    work = {"batches": batches, "read": read}.get(name, described)
    seconds = []
    for paths in [str(folder / f"small{index}.parquet") for index in range(FILES)], files:
        comm.Barrier()
        start = time.perf_counter()
        work(paths)
        seconds.append(comm.allreduce(time.perf_counter() - start, MPI.MAX))
    if comm.rank == 0:
        print(f"seconds {seconds[1]} {seconds[0]}", file=sys.stderr)


def duckdb_(files, what="exact"):
    """Return what DuckDB has to do."""
    import duckdb

    connection = duckdb.connect()
    connection.execute(f"SET threads = {RANKS}")
    functions = ("count", "sum", "avg", "var_samp", "min", "max")
    wanted = ", ".join(f"{function}({column})" for column in COLUMNS for function in functions)
    if what == "quartiles":
        wanted = ", ".join(f"quantile_cont({column}, [0.25, 0.5, 0.75])" for column in COLUMNS)
    by = f" GROUP BY {what} ORDER BY {what}" if what in KEYS else ""
    wanted = f"{what}, {wanted}" if by else wanted
    return lambda: connection.execute(f"SELECT {wanted} FROM read_parquet({files}){by}").fetchall()


def polars_(files):
    """Return what Polars has to do."""
    import polars as pl

    wanted = [
        getattr(pl.col(column), function)().alias(f"{column} {function}")
        for column in COLUMNS
        for function in ("count", "sum", "mean", "var", "min", "max")
    ]
    return lambda: pl.scan_parquet(files).select(wanted).collect(engine="streaming")


def rival(name, files):
    """Run one rival; print its seconds."""
    program, *what = name.split()
    work = {"duckdb": duckdb_, "polars": polars_}[program](files, *what)
    start = time.perf_counter()
    work()
    print(f"seconds {time.perf_counter() - start}", file=sys.stderr)


def timed(name, folder, python):
    """Return the seconds of one contender, and those of the small files; None if it is not installed."""
    environment = os.environ | {"POLARS_MAX_THREADS": str(RANKS), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parent.parent), environment.get("PYTHONPATH", "")])
    command = [sys.executable if name in OURS else python, HERE, "--only", name, "--folder", folder]
    if name in OURS:
        command = [HERE.parent / "launch.sh", str(RANKS), *command]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    if "ModuleNotFoundError" in result.stderr:
        return None
    for line in result.stderr.splitlines():
        if line.startswith("seconds "):
            return [float(word) for word in line.split()[1:]]
    sys.exit(f"{name} failed with status {result.returncode}:\n{result.stderr}{result.stdout}")


def ours_of(name):
    """Return with which of ours a contender is compared."""
    return name.split()[-1] if name.split()[-1] in OPTIONS else "exact"


def compare(folder, rounds, python, contenders):
    """Let all take turns, and return name -> what was measured."""
    times = {name: [] for name in contenders}
    for _ in range(rounds):
        for name in [*times]:
            found = timed(name, folder, python)
            if found is None:
                print(f"{name} is left out: {python} does not have it", file=sys.stderr)
                del times[name]
            else:
                times[name].append(found)
    return {
        name: {
            "median_s": statistics.median(seconds for seconds, *_ in found),
            "fastest_s": min(seconds for seconds, *_ in found),
            "ratio": statistics.median(
                seconds / reference for (seconds, *_), (reference, *_) in zip(found, times[ours_of(name)], strict=True)
            ),
            "first_s": statistics.median(more[0] for _, *more in found) if len(found[0]) > 1 else None,
        }
        for name, found in times.items()
    }


def count(text):
    """Read 20M, 500K or 1000."""
    scale = {"K": 1000, "M": 1_000_000}.get(text[-1].upper())
    return int(float(text[:-1]) * scale) if scale else int(text)


def main():
    """Make the data, measure, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=count, default=20_000_000, help="of all files together (20M)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the data are made, and kept; by default they are removed")
    parser.add_argument("--rivals", default=os.environ.get("HPCREDUCE_RIVALS", sys.executable), metavar="PYTHON")
    parser.add_argument("--contenders", metavar="A,B", help=f"of {', '.join([*OURS, *RIVALS])} (all)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        files = [str(options.folder / f"{index}.parquet") for index in range(FILES)]
        if options.only in OURS:
            ours(options.only, options.folder, files)
        else:
            rival(options.only, files)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        nbytes = sum(os.path.getsize(path) for path in make(folder, options.rows))
        chosen = options.contenders.split(",") if options.contenders else [*OURS, *RIVALS]
        chosen = [name for name in (*OURS, *RIVALS) if name in {*chosen, *map(ours_of, chosen)}]
        found = compare(folder, options.rounds, options.rivals, chosen)
    print(f"{options.rows} rows, {nbytes / 1e6:.0f} MB in {FILES} files; {RANKS} ranks or threads")
    print(f"{'':18}{'median':>10}{'fastest':>10}{'ratio':>8}{'first':>10}")
    for name, row in found.items():
        first = f"{row['first_s']:.2f} s" if row["first_s"] else ""
        print(f"{name:18}{row['median_s']:8.2f} s{row['fastest_s']:8.2f} s{row['ratio']:8.2f}{first:>10}")
    if options.json:
        about = {"rows": options.rows, "nbytes": nbytes, "ranks": RANKS, "rounds": options.rounds}
        options.json.write_text(json.dumps(about | {"contenders": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
