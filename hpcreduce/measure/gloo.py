"""Gloo, as torch.distributed offers it: the only file that knows torch.

Rules that hold here:

* torch is imported when it is asked for, not before.
* The ranks meet at a store of rank 0, whose address they hear over MPI. Between hosts gloo talks on the interface that
  leads from one to the other, on one host on the loopback; GLOO_SOCKET_IFNAME wins over both.
* What fails on one rank is raised on all.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from hpcreduce.errors import HpcreduceError
from hpcreduce.runtime.operations import Array, DType, divide
from hpcreduce.units import format_ranks

VARIABLE = "GLOO_SOCKET_IFNAME"

MEETING, CALL = timedelta(seconds=20), timedelta(seconds=600)
"""How long ranks wait for the store, and in a call."""

_COMPLEX, _WIDE, _OTHER = "complex64 complex128", "float32 float64", "float16 int8 uint8 int32 int64"
_TYPES = {
    "sum": f"{_WIDE} {_OTHER} {_COMPLEX}",
    "mean": f"{_WIDE} {_COMPLEX}",  # not float16: its sums lose digits and overflow
    "prod": f"{_WIDE} {_OTHER}",
    "max": f"{_WIDE} {_OTHER}",
    "min": f"{_WIDE} {_OTHER}",
}
"""Operation -> the dtypes that NumPy and torch share and that gloo reduces."""

_CALLED = {"sum": "SUM", "mean": "SUM", "prod": "PRODUCT", "max": "MAX", "min": "MIN"}

_SIOCGIFADDR = 0x8915

T = TypeVar("T")


def lacks(op: str, dtype: DType) -> str:
    """Return why gloo cannot do this, or an empty string.

    >>> import numpy as np
    >>> lacks("sum", np.dtype("float32")), lacks("bor", np.dtype("int32"))
    ('', 'gloo has no bor; it has sum, mean, prod, max, min')
    """
    if op not in _TYPES:
        return f"gloo has no {op}; it has {', '.join(_TYPES)}"
    if dtype.name not in _TYPES[op].split() or not dtype.isnative:
        return f"gloo has no {op} of {dtype}; it takes {', '.join(_TYPES[op].split())}"
    return ""


def missing(comm: Any) -> str:
    """Return why there is no gloo on some rank, or an empty string; collective."""
    os.environ.setdefault(
        "TORCH_CPP_LOG_LEVEL", "FATAL"
    )  # else errors, which we report, come with a page of C++ frames
    reason = ""
    try:
        import torch.distributed as distributed

        if not (distributed.is_available() and distributed.is_gloo_available()):
            reason = "this torch was built without gloo"
    except (ImportError, OSError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        reason = f"it needs the package torch ({said}): pip install torch"
    found = comm.allgather(reason)
    ranks = [rank for rank, each in enumerate(found) if each]
    return f"{found[ranks[0]]} (ranks {format_ranks(ranks)})" if ranks else ""


def version() -> str:
    """Return torch's version."""
    import torch

    return str(torch.__version__)


def reducer(comm: Any, array: Array, op: str) -> Callable[[], None]:
    """Return a function that reduces the array in place, inside of `group`."""
    import torch
    import torch.distributed as distributed

    tensor = torch.from_numpy(array)  # the same memory
    called = getattr(distributed.ReduceOp, _CALLED[op])

    def call() -> None:
        distributed.all_reduce(tensor, called)
        if op == "mean":
            divide(array, comm.size)

    return call


@contextlib.contextmanager
def group(comm: Any) -> Iterator[None]:
    """Let the ranks be torch's default process group; collective.

    Raises
    ------
    HpcreduceError
        On all ranks: they do not find to each other.
    """
    import torch.distributed as distributed
    from mpi4py import MPI

    here, host = addresses(), MPI.Get_processor_name()
    places = comm.allgather((host, here))
    name = _together(comm, lambda: os.environ.get(VARIABLE) or interface(places, host))
    first = name.split(",")[0]

    def store(address: str, port: int) -> Any:
        return distributed.TCPStore(address, port, comm.size, comm.rank == 0, MEETING, wait_for_workers=False)

    def offer() -> Any:
        if first not in here:
            raise ValueError(
                f"no interface {name} with an IPv4 address; expected one of {', '.join(here)} in {VARIABLE}"
            )
        return store(here[first], 0)

    offered = _together(comm, offer if comm.rank == 0 else lambda: None)
    address = comm.bcast((here[first], offered.port) if offered else None)
    found = _together(comm, lambda: offered or store(*address))  # before any waits for the others in it

    def join() -> None:
        with _set(VARIABLE, name):
            distributed.init_process_group("gloo", store=found, rank=comm.rank, world_size=comm.size, timeout=CALL)

    _together(comm, join)
    try:
        yield
        comm.Barrier()  # rank 0 has the store
    finally:
        distributed.destroy_process_group()


def addresses() -> dict[str, str]:
    """Return the interfaces of this host that are up -> their IPv4 addresses."""
    import fcntl

    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has none
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found[name] = socket.inet_ntoa(answer[20:24])
    return found


def interface(places: Sequence[tuple[str, dict[str, str]]], host: str) -> str:
    """Return the interface of this host that leads to the others; `places` are host and `addresses` of each rank.

    Raises
    ------
    ValueError
        There is none.
    """
    hosts = dict(places)
    loopback = next((name for name, address in hosts[host].items() if address.startswith("127.")), "")
    if len(hosts) == 1 and loopback:
        return loopback
    other = next((each for each in hosts if each != host), host)
    for target in reachable(hosts, other):
        own = _on_the_way(target)
        for name, address in hosts[host].items():
            if address == own and not address.startswith("127."):
                return name
    raise ValueError(f"no interface of {host} leads to {other}; name one in {VARIABLE}")


def reachable(hosts: dict[str, dict[str, str]], host: str) -> list[str]:
    """Return the addresses of a host that no other host has as well, as bridges of containers and the loopback are.

    >>> reachable({"a": {"lo": "127.0.0.1", "eth0": "10.0.0.1"}, "b": {"lo": "127.0.0.1", "eth0": "10.0.0.2"}}, "b")
    ['10.0.0.2']
    """
    others = {address for name, here in hosts.items() if name != host for address in here.values()}
    return [address for address in hosts[host].values() if address not in others]


def _on_the_way(target: str) -> str:
    """Return this host's own address on the way to another one, or an empty string; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def _together(comm: Any, step: Callable[[], T]) -> T:
    """Return what the step gives, or raise HpcreduceError on every rank if it fails on any; collective."""
    done: list[T] = []
    reason = ""
    try:
        done.append(step())
    except (OSError, RuntimeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    failed = [f"rank {rank}: {each}" for rank, each in enumerate(comm.allgather(reason)) if each]
    if failed:
        raise HpcreduceError(f"gloo cannot start: {failed[0]}")
    return done[0]


@contextlib.contextmanager
def _set(variable: str, value: str) -> Iterator[None]:
    before = os.environ.get(variable)
    os.environ[variable] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before
