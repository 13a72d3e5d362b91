"""What a forked worker and its parent tell each other over a pipe: chunks of items there, their parts back.

torch's own pickling would move tensors into shared memory, one file each. Here they travel as arrays.

Invariants:
    1. What waits in a worker is a copy: the function may use its memory again.
    2. A part that does not pickle leaves what was put before it as it was.
"""

from __future__ import annotations

import io
import pickle
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from prepcache.fill.call import Part

if TYPE_CHECKING:
    from prepcache.keys.observation.inputs import Input

WAITING_BYTES = 8 << 20
"""What may wait in a worker; so much is sent at once."""

Results = tuple[list[Part], list["Input"], set[str]]
"""Parts, what the function was seen to read since the last ones, and the generators that it drew from."""


class Outbox:
    """The worker's end of its pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._waiting: list[bytes] = []

    def chunk(self) -> list[int]:
        """The next items to be made; waits for them.

        Raises:
            EOFError: the parent wants no more.
        """
        chunk: list[int] | None = self._pipe.recv()
        if chunk is None:
            raise EOFError
        return chunk

    def put(self, part: Part) -> None:
        """Takes a part.

        Raises:
            Exception: what came of a sample that does not pickle.
        """
        self._waiting.append(_dump(_picklable(part)))

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._waiting

    @property
    def is_full(self) -> bool:
        """Whether what waits is to be sent now."""
        return sum(map(len, self._waiting)) >= WAITING_BYTES

    def send(self, observed: list[Input], drawn: set[str]) -> None:
        """Sends what was put, what the function was seen to read, and the generators that it drew from."""
        self._pipe.send((len(self._waiting), observed, drawn))
        for raw in self._waiting:
            self._pipe.send_bytes(raw)
        self._waiting = []


class Inbox:
    """The parent's end of a worker's pipe."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def submit(self, chunk: list[int]) -> None:
        """Tells the worker its next items."""
        with suppress(BrokenPipeError):  # its death is found by `receive`
            self.pipe.send(chunk)

    def end(self) -> None:
        """Tells the worker to end: that the pipe closes it may not see, where another thread was forking."""
        with suppress(OSError):
            self.pipe.send(None)
        self.pipe.close()

    def receive(self) -> Results:
        """What the worker sent.

        Raises:
            EOFError, ConnectionResetError: the worker is dead.
        """
        count, observed, drawn = self.pipe.recv()
        return [Part(*pickle.loads(self.pipe.recv_bytes())) for _ in range(count)], observed, drawn


class _Pickler(pickle.Pickler):
    """Pickles dense CPU tensors as arrays, without torch's shared memory."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(value) is not torch.Tensor:
            return NotImplemented
        if value.layout is not torch.strided or value.device.type != "cpu" or value.requires_grad:
            return NotImplemented
        if value.is_conj() or value.is_neg() or value.numel() == 0:
            return NotImplemented
        dense = value.contiguous()
        # Not reshape(-1): that leaves one element its stride, and another than 1 makes no run of bytes.
        raw = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy()
        return _tensor, (pickle.PickleBuffer(raw), str(value.dtype), tuple(value.shape))


def _tensor(raw: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.frombuffer(raw, dtype=getattr(torch, dtype.removeprefix("torch."))).reshape(shape)


def _dump(part: Part) -> bytes:
    """A part as a pickle of its fields: its own takes Python code at both ends."""
    stream = io.BytesIO()
    fields = (
        part.index, part.samples, part.is_last, part.cost_s, part.error, part.refusal, part.unobserved,
        part.notices,
    )  # fmt: skip
    _Pickler(stream, protocol=5).dump(fields)
    return stream.getvalue()


def unpacked(part: Part, error: Exception) -> Part:
    """The end of an item of which a part does not pickle: what its writer says of it, if anything."""
    end = part.looked_at()
    return end if end.refusal is not None else Part(part.index, [], True, part.cost_s, error)


def _picklable(part: Part) -> Part:
    """`part`, with an error that survives the pipe and keeps the worker's traceback as a note."""
    if part.error is None:
        return part
    error = part.error
    note = "in a preprocessing worker:\n" + "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - a foreign exception's own pickling may raise anything
        error = RuntimeError(f"{type(error).__qualname__}: {error}")
    error.add_note(note)
    return Part(part.index, [], True, part.cost_s, error)
