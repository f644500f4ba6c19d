"""The messages of an inquiry over MPI: small parts that every library sends at once, on a duplicate of their own."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from hpcreduce.runtime.inquiry import Inquiry

PART = 1400
"""Bytes of a part: below what any library asks the receiver about first, so that the sender may leave."""

MISSES = 3
"""Probes in a row that find nothing before it is believed: one probe handles about one packet."""


class Control:
    """The control channel of one communicator.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        The duplicate that only control messages use.
    inquiry : Inquiry
    identity : str
        Of the communicator: a message may outlive one whose number the library gives to another.
    """

    def __init__(self, comm: Any, inquiry: Inquiry, identity: str) -> None:
        from mpi4py import MPI

        self.comm, self.inquiry, self.identity = comm, inquiry, identity
        self.sent = 0
        self._status, self._any_source, self._any_tag, self._byte = MPI.Status(), MPI.ANY_SOURCE, MPI.ANY_TAG, MPI.BYTE
        self._parts: dict[tuple[int, int], bytes] = {}
        self._sending: list[tuple[Any, bytes]] = []

    def poll(self) -> None:
        """Take all messages that are there."""
        misses, status = 0, self._status
        while misses < MISSES:
            message = self.comm.Improbe(self._any_source, self._any_tag, status)
            if message is None:
                misses += 1
                continue
            misses = 0
            part = bytearray(status.Get_count(self._byte))
            message.Recv([part, self._byte])
            self._take(status.source, status.tag, bytes(part))

    def _take(self, source: int, kind: int, part: bytes) -> None:
        whole = self._parts.pop((source, kind), b"") + part[1:]
        if part[:1] == b"+":
            self._parts[source, kind] = whole
            return
        content = json.loads(whole)
        if content.pop("comm") == self.identity:
            self.inquiry.receive(source, kind, content)

    def look(self, peers: Iterable[int], concerned: bool = True) -> None:
        """Take the messages that are there, and the next step of the inquiry."""
        self.poll()
        self.inquiry.look(time.monotonic(), peers, concerned)
        self.flush()

    def flush(self) -> None:
        """Send what the inquiry wants sent."""
        outbox, self.inquiry.outbox = self.inquiry.outbox, []
        self._sending = [entry for entry in self._sending if not entry[0].Test()]
        for kind, content, receivers in outbox:
            text = json.dumps(content | {"comm": self.identity}).encode()
            for start in range(0, len(text), PART):
                mark = b"+" if start + PART < len(text) else b"."
                part = mark + text[start : start + PART]
                for rank in receivers:
                    self._sending.append((self.comm.Isend([part, self._byte], rank, kind), part))
                    self.sent += 1

    def unsent(self) -> list[Any]:
        """Return what must be kept alive since the library may not have sent it yet."""
        return [entry for entry in self._sending if not entry[0].Test()]
