"""Errors that this package raises beyond `TypeError` and `ValueError` for a wrong call."""

from __future__ import annotations


class HpcreduceError(Exception):
    """Base of the errors that are not a wrong call on this rank."""


class MismatchError(HpcreduceError, ValueError):
    """Ranks made different calls, or one has left without making them. Raised on every rank, with who did what."""


class CollectiveTimeoutError(HpcreduceError, TimeoutError):
    """A collective operation did not finish within its time-out. Raised on every rank that waits for it.

    Attributes
    ----------
    ranks : tuple of int
        Those that did not come, as far as it is known.
    """

    ranks: tuple[int, ...] = ()


class PeerError(HpcreduceError):
    """Another rank has failed: the text has its traceback.

    Attributes
    ----------
    ranks : tuple of int
        Those that failed.
    """

    ranks: tuple[int, ...] = ()


class NonFiniteError(HpcreduceError, ArithmeticError):
    """Gradients of some ranks have NaN or infinities. Raised on every rank, with the parameters.

    Attributes
    ----------
    ranks : tuple of int
        Those whose gradients have them.
    """

    ranks: tuple[int, ...] = ()


class ReplicaError(HpcreduceError):
    """Parameters that should be equal on all ranks are not. Raised on every rank, with the parameters.

    Attributes
    ----------
    ranks : tuple of int
        Those that differ from most others.
    """

    ranks: tuple[int, ...] = ()


class BrokenCommunicatorError(HpcreduceError):
    """An earlier operation on this communicator failed, and its messages may be under way; says how to go on."""


class LaunchError(HpcreduceError):
    """The launcher started several processes, but each of them is alone in its MPI world."""


class ProofError(HpcreduceError):
    """A schedule or its compiled program is wrong; the text says which property fails, and where."""


class NetworkError(HpcreduceError, ValueError):
    """A description of a network is wrong, or too small; the text names the file and the field."""


class DumpError(HpcreduceError, ValueError):
    """A file is no dump of a rank, or a folder has none; the text names the file and the field."""


class TableError(HpcreduceError, ValueError):
    """A table of measured choices cannot be read, or is wrong; raised on every rank, with the file and the field."""


class FiguresError(HpcreduceError, ValueError):
    """A file has no figures of ``bench``; the text names the file and the field."""


class BatchError(HpcreduceError, ValueError):
    """Options of a batch script contradict each other; the text names them."""
