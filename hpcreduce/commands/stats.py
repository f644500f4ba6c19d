"""``stats``: exact statistics of the columns of tables and arrays, which the ranks read together."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from typing import Any

import click

from hpcreduce.commands.console import PICTURES, CommandError, Console, need, to_json
from hpcreduce.commands.stats_options import Bins, Listed, Shares, Sign
from hpcreduce.stats import report, screen, sources
from hpcreduce.stats.batches import NUMBER
from hpcreduce.stats.meeting import StatsError
from hpcreduce.stats.moments import passes, summarise
from hpcreduce.stats.quantilerules import METHODS
from hpcreduce.stats.sources import ReadOptions, Source
from hpcreduce.stats.wanted import Summary, Wanted
from hpcreduce.units import plural

TABLES = (".csv", ".parquet")
BINS = 50
"""Bins of the histograms that are drawn if no other number is asked for."""
MOST_TOP = 10_000


_HELP = {
    "columns": "Of tables: only these, by name; a name with a comma in double quotes.",
    "column": "Of arrays without names: only these, by number from 0; give it several times for several.",
    "dataset": "Of HDF5 files: the dataset to read.",
    "ddof": "The divisor of variance and covariance is count - ddof: 1 for a sample, 0 for a population.",
    "moments": (
        "Also variance, skewness and excess kurtosis (of the population and of a sample), product, and file and row of "
        "the extremes."
    ),
    "covariance": "Also the covariance of each pair of columns.",
    "histogram": "Counts in equal bins of the range of all values, or of lo to hi, whose ends both belong to it.",
    "weights": (
        "Sum, mean, std, var, skewness, kurtosis and covariance of the other columns count each row as often as this "
        "column says; no figure counts rows where it is 0 or missing. The divisor is the sum of weights - ddof."
    ),
    "nan": "NaN counts apart and is passed over, or makes sum, mean, std, min, max NaN.",
    "null": (
        "Of CSV: what stands for a missing value, a comma-separated list, as the empty field always does; by default "
        "NA, N/A, NULL, null, None, #N/A and their like."
    ),
    "thousands": "Of CSV: what stands between thousands, as in 1,234.",
    "delimiter": "Of CSV: what stands between fields (a character, or tab); by default a comma, in .tsv files a tab.",
    "decimal": "Of CSV: what stands before the fraction, as in 0,5.",
    "json": "Write all figures as JSON, or print them instead of the tables.",
    "output": "Write a row per column; sum, min, max also as text with all digits.",
    "plot": f"Draw the histograms, of {BINS} bins unless --histogram says otherwise.",
    "quantiles": "The values that these parts of all values, from 0 to 1, do not exceed; none leaves them out.",
    "method": "What stands for a quantile between two values, as in NumPy.",
    "approx": "Quantiles from one pass, within 1/128 of the value.",
    "distinct": "Also how many different values there are; of very many an estimate, with its error.",
    "top": "Also the K most frequent values, exactly.",
    "by": "Also figures of each group of rows with equal values in these columns; --output then writes the groups.",
    "fast": "In floating point: not exact, and the bits depend on ranks and files.",
}


@click.command("stats")
@click.argument("files", nargs=-1, required=True, metavar="FILES...")
@click.option("--columns", type=Listed(), metavar="A,B", help=_HELP["columns"])
@click.option("--column", "indices", type=click.IntRange(0), multiple=True, metavar="I", help=_HELP["column"])
@click.option("--dataset", metavar="PATH", help=_HELP["dataset"])
@click.option("--ddof", type=click.IntRange(0, 2**31), default=1, show_default=True, help=_HELP["ddof"])
@click.option("--moments", is_flag=True, help=_HELP["moments"])
@click.option("--covariance", is_flag=True, help=_HELP["covariance"])
@click.option("--histogram", type=Bins(), metavar="BINS[:lo:hi]", help=_HELP["histogram"])
@click.option("--weights", metavar="COL", help=_HELP["weights"])
@click.option("--nan", type=click.Choice(["skip", "propagate"]), default="skip", show_default=True, help=_HELP["nan"])
@click.option("--null-values", type=Listed(), metavar="A,B", help=_HELP["null"])
@click.option("--thousands", type=Sign(), metavar="CHAR", help=_HELP["thousands"])
@click.option("--delimiter", type=Sign(), metavar="CHAR", help=_HELP["delimiter"])
@click.option("--decimal", type=Sign(), default=".", metavar="CHAR", help=_HELP["decimal"])
@click.option("--json", "json_path", metavar="FILE|-", help=_HELP["json"])
@click.option("--output", metavar="FILE.csv|parquet", help=_HELP["output"])
@click.option("--plot", "plot_path", metavar="FILE.png|svg|pdf", help=_HELP["plot"])
@click.option("--quantiles", type=Shares(), default="0.25,0.5,0.75", show_default=True, help=_HELP["quantiles"])
@click.option("--method", type=click.Choice(list(METHODS)), default="linear", show_default=True, help=_HELP["method"])
@click.option("--approx", is_flag=True, help=_HELP["approx"])
@click.option("--distinct", is_flag=True, help=_HELP["distinct"])
@click.option("--top", type=click.IntRange(1, MOST_TOP), metavar="K", help=_HELP["top"])
@click.option("--by", type=Listed(), metavar="A,B", help=_HELP["by"])
@click.option("--fast", is_flag=True, help=_HELP["fast"])
def stats_command(
    files: tuple[str, ...],
    columns: tuple[str, ...] | None,
    indices: tuple[int, ...],
    dataset: str | None,
    ddof: int,
    moments: bool,
    covariance: bool,
    histogram: tuple[int, float | None, float | None] | None,
    weights: str | None,
    nan: str,
    null_values: tuple[str, ...] | None,
    thousands: str | None,
    delimiter: str | None,
    decimal: str,
    json_path: str | None,
    output: str | None,
    plot_path: str | None,
    quantiles: tuple[float, ...],
    method: str,
    approx: bool,
    distinct: bool,
    top: int | None,
    by: tuple[str, ...] | None,
    fast: bool,
) -> int:
    """Count, sum, mean, deviation, extremes of every column.

    FILES are Parquet, CSV or TSV (also .gz), Arrow IPC (Feather), NPY, NPZ or HDF5 files, folders of them, patterns, or
    - for CSV on stdin (without mpirun, which does not pass on much of it). Columns are put together by their names. The
    ranks share the work; each row is read once.

    Sums, means, deviations and covariances are correctly rounded: the float nearest to the exact value of the data, and
    so the same for any number of ranks, order of files and split of the rows.
    """
    if by and weights:
        raise click.UsageError("--by takes no --weights: give one of them")
    if indices and columns:
        raise click.UsageError("--column is for arrays without names, --columns for tables: give one of them")
    _check_signs(files, delimiter, decimal, thousands)
    paths = _outputs(json_path, output, plot_path)
    if plot_path and not histogram:
        histogram = (BINS, None, None)
    wanted = Wanted(
        ddof,
        moments,
        covariance,
        histogram,
        weights,
        nan,
        fast,
        quantiles,
        method,
        approx,
        distinct,
        top or 0,
    )
    names = columns or tuple(map(str, dict.fromkeys(indices))) or None
    options = ReadOptions(names, dataset, null_values, thousands, delimiter, decimal)
    console = Console()
    if output:
        need("pyarrow", "--output")
    if plot_path:
        need("matplotlib", "--plot")
    with contextlib.ExitStack() as stack:
        opened = {path: stack.enter_context(console.output(path)) for path in sorted(paths)}
        source = _source(console, files, options, paths, weights, by or ())
        fields = {field.name: field for field in source.schema}
        wanted = wanted._replace(by=tuple(fields[name] for name in by or ()))
        for note in source.notes:
            console.note(f"note: {note}")
        summary = _summarise(console, source, wanted, names)
        origin = report.Origin(source.files, [shard.file for shard in source.shards])
        document = report.document(summary, origin, wanted, None if json_path else screen.MOST_GROUPS)
        if summary.unbinned:
            some = f"{summary.unbinned[0]!r}" + (
                f" and {len(summary.unbinned) - 1} more" if summary.unbinned[1:] else ""
            )
            console.note(f"note: no histogram of {some}: float64 cannot tell so many bins of that range apart")
        for path, file in opened.items():
            with console.told(path):
                if file:
                    _write(console, summary, document, file, path, path == json_path)
    if json_path == "-":
        console.out(to_json(document))
    elif console.first:
        rows, read = plural(summary.rows, "row"), plural(len(source.files), "file")
        weighted = f"; weighted by {screen.clean(weights)}" if weights else ""
        console.out(f"{rows} in {read}, {plural(summary.ranks, 'rank')}{weighted}\n")
        for line in screen.lines(document):
            console.out(line)
    return 0


def _check_signs(files: tuple[str, ...], delimiter: str | None, decimal: str, thousands: str | None) -> None:
    """Raise for CSV in which one sign would mean two things."""
    commas = delimiter is None and not all(re.search(r"\.(tsv|tab)(\.gz)?$", file, re.IGNORECASE) for file in files)
    if decimal == ("," if commas else delimiter):
        raise click.UsageError(f"--delimiter and --decimal cannot both be {decimal!r}; give another --delimiter")
    if decimal == thousands:
        raise click.UsageError(f"--decimal and --thousands cannot both be {decimal!r}")


def _outputs(json_path: str | None, output: str | None, plot_path: str | None) -> set[str]:
    """Return the paths of the files to write, after a look at their names."""
    if "-" in (output, plot_path):
        raise click.UsageError("--output and --plot need a file; only --json can go to stdout")
    if output and not output.endswith(TABLES):
        raise click.UsageError(f"the output {output} must end in {' or '.join(TABLES)}")
    if plot_path and not plot_path.endswith(PICTURES):
        raise click.UsageError(f"the picture {plot_path} must end in {', '.join(PICTURES)}")
    paths = [path for path in (json_path, output, plot_path) if path and path != "-"]
    if len({os.path.realpath(path) for path in paths}) < len(paths):
        raise click.UsageError("--json, --output and --plot need a file each, and two are the same")
    return set(paths)


def _source(
    console: Console,
    files: tuple[str, ...],
    options: ReadOptions,
    paths: set[str],
    weights: str | None,
    by: tuple[str, ...],
) -> Source:
    """Look at the files; collective."""
    names = options.columns
    more = [*by, *([] if weights is None else [weights])]
    if names is not None:
        options = options._replace(columns=tuple(dict.fromkeys([*names, *more])))
    with console.progress("looking", nbytes=True) as progress:
        source = sources.find(console.comm, files, options, progress)
    found = {field.name: field for field in source.schema}
    if weights is not None and weights not in found:
        near = difflib.get_close_matches(weights, found, 1)
        raise CommandError(f"--weights: no column {weights!r}{f'; did you mean {near[0]!r}?' if near else ''}")
    if weights is not None and found[weights].kind != NUMBER:
        raise CommandError(f"--weights: column {weights!r} is {found[weights].dtype}, expected numbers")
    for name in by:
        if name not in found:
            near = difflib.get_close_matches(name, found, 1)
            why = next((f" ({note})" for note in source.notes if repr(name) in note), "")
            raise CommandError(f"--by: no column {name!r}{why}{f'; did you mean {near[0]!r}?' if near else ''}")
    console.spare(sorted(paths), source.files)
    return source


def _summarise(console: Console, source: Source, wanted: Wanted, names: tuple[str, ...] | None) -> Summary:
    """Read and describe; collective."""
    aside = {wanted.weights} if names is None else {wanted.weights, *(field.name for field in wanted.by)} - {*names}
    described = [field for field in source.schema if field.name not in aside or (names and field.name in names)]
    with console.progress("reading", nbytes=True) as progress:
        mine = sum(source.shards[number].nbytes for number in source.mine)
        done, total = 0, passes(wanted) * source.nbytes

        def move(nbytes: int) -> None:
            """All ranks are as far as this one, as far as anybody knows."""
            nonlocal done
            done += nbytes
            progress(min(done * source.nbytes // max(1, mine), total), total)

        try:
            return summarise(console.comm, described, lambda columns: source.batches(columns, move), wanted)
        except StatsError as error:
            raise CommandError(f"{_where(source, error)}{error}") from None


def _where(source: Source, error: StatsError) -> str:
    """Say in which file an error is, and in which row if no shard of the file stands before."""
    if error.shard is None:
        return ""
    owner = source.shards[error.shard].file
    first = error.shard == 0 or source.shards[error.shard - 1].file != owner
    row = f", row {error.row} (from 0)" if first and error.row is not None else ""
    return f"{source.files[owner]}{row}: "


def _write(console: Console, summary: Summary, document: dict[str, Any], file: Any, path: str, as_json: bool) -> None:
    """Write one of the output files; its name says what it is, unless it is the JSON."""
    form = path.rsplit(".", 1)[-1]
    if as_json:
        file.write(f"{to_json(document)}\n".encode())
    elif path.endswith(TABLES) and summary.groups:
        report.write_groups(summary, file, form)
    elif path.endswith(TABLES):
        report.write(document, file, form)
    else:
        from hpcreduce.stats import plots

        if not any(column.get("histogram") for column in document["columns"].values()):
            console.note(f"note: {path} is empty: there is no column of numbers to draw")
        if left_out := plots.histograms(document, file, form):
            console.note(f"note: {path} has no room for {plural(len(left_out), 'column')}, from {left_out[0]!r} on")
