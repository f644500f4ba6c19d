"""Statistics of data that lie on many ranks: exact, and the same bits for any number of ranks, files and parts."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcreduce.stats.describe import describe
    from hpcreduce.stats.meeting import StatsError
    from hpcreduce.stats.records import Record, check_record, compute
    from hpcreduce.stats.wanted import Described, Summary, Wanted

__all__ = ["Described", "Record", "StatsError", "Summary", "Wanted", "check_record", "compute", "describe"]

_HOMES = {
    "Described": "wanted",
    "Record": "records",
    "StatsError": "meeting",
    "Summary": "wanted",
    "Wanted": "wanted",
    "check_record": "records",
    "compute": "records",
    "describe": "describe",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import what is asked for on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found  # `describe` is a module too, which the import has put here
    return found
