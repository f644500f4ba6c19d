"""Errors that this package raises beyond `TypeError` and `ValueError` for a wrong call."""

from __future__ import annotations


class HpcreduceError(Exception):
    """Base of the errors that are not a wrong call on this rank."""


class CollectiveTimeoutError(HpcreduceError, TimeoutError):
    """A collective operation did not finish within its time-out; its communicator cannot be used by us any more."""


class BrokenCommunicatorError(HpcreduceError):
    """An earlier collective operation on this communicator was interrupted, so messages of it may be under way."""


class LaunchError(HpcreduceError):
    """The launcher started several processes, but each of them is alone in its MPI world."""


class ProofError(HpcreduceError):
    """A schedule or its compiled program is wrong; the text says which property fails, and where."""


class NetworkError(HpcreduceError, ValueError):
    """A description of a network is wrong, or too small; the text names the file and the field."""


class DumpError(HpcreduceError, ValueError):
    """A file is no dump of a rank, or a folder has none; the text names the file and the field."""
