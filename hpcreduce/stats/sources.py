"""Data files as all ranks see them: which there are, what columns they have, who reads what."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from hpcreduce.stats.batches import Batch, Field
from hpcreduce.stats.reading import ReadOptions, Shard, SourceError

__all__ = ["ReadOptions", "Shard", "Source", "SourceError", "find"]


class Source(NamedTuple):
    """Files that have been looked at, cut into shards, and shared out; all but `mine` is the same on every rank."""

    comm: Any
    files: list[str]
    """In canonical order: sorted, each once. ``-`` is stdin."""
    schema: list[Field]
    """The wanted columns."""
    notes: list[str]
    """What the user should know, to be printed once: files without rows, columns that are left out, ..."""
    shards: list[Shard]
    """Numbered over all files, those of one file in the order of its rows."""
    mine: list[int]
    """The numbers of the shards that this rank reads."""
    options: ReadOptions

    @property
    def nbytes(self) -> int:
        """Bytes that all ranks together read in one pass."""
        return sum(shard.nbytes for shard in self.shards)

    def batches(
        self, columns: Sequence[str] | None = None, progress: Callable[[int], None] | None = None
    ) -> Iterator[Batch]:
        """Read this rank's shards; collective, also where there are none, and to be used up by every rank.

        Each call reads anew. Numbers come in the type that their file has them in, which may be narrower than that of
        the field: of an int64 and a float64 file, neither is rounded.

        Parameters
        ----------
        columns : sequence of str, optional
            Those of the schema that are wanted; by default all. Every batch has each of them.
        progress : callable, optional
            Is called with the bytes that this rank has read since the last call.

        Raises
        ------
        SourceError
            On every rank, when all have read as far as they could, with the same text.
        """
        raise NotImplementedError


def find(
    comm: Any,
    files: Sequence[str],
    options: ReadOptions | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Source:
    """Look for data files and see what is in them; collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    files : sequence of str
        Paths, patterns (``*``, ``?``, ``[...]``, ``**``), folders (all data files in and below them) and ``-``, CSV on
        stdin. Those of rank 0 count.
    options : ReadOptions, optional
    progress : callable, optional
        Is called with the bytes done and the bytes to do while CSV files are searched for the types of their columns.

    Raises
    ------
    SourceError
        On every rank, with the same text.
    """
    raise NotImplementedError
