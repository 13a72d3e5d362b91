"""Parcels: parts, and what was observed, on their way through a pipe; arrays and tensors as raw buffers.

torch's own pickling would move tensors into shared memory, one file each. These are copied once into the
pipe and once out of it.
"""

from __future__ import annotations

import io
import pickle
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

from prepcache.data.calls import Part

IN_BAND_BYTES = 1 << 16
"""Smaller buffers go in the message itself: a write for each would cost more than the copy."""


class _Pickler(pickle.Pickler):
    """Pickles dense CPU tensors as arrays: out of band, without torch's shared memory."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(value) is not torch.Tensor:
            return NotImplemented
        if value.layout is not torch.strided or value.device.type != "cpu" or value.requires_grad:
            return NotImplemented
        if value.is_conj() or value.is_neg() or value.numel() == 0:
            return NotImplemented
        dense = value.contiguous()
        raw = dense.reshape(-1).view(torch.uint8).numpy()
        return _tensor, (pickle.PickleBuffer(raw), str(value.dtype), tuple(value.shape))


def _tensor(raw: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.frombuffer(raw, dtype=getattr(torch, dtype.removeprefix("torch."))).reshape(shape)


def send(pipe: Connection, parts: list[Part], observed: list[dict[str, Any]], drawn: set[str]) -> None:
    buffers: list[pickle.PickleBuffer] = []
    head = _dump(([_picklable(part) for part in parts], observed, drawn), buffers)
    raws = [buffer.raw() for buffer in buffers]
    pipe.send_bytes(pickle.dumps([raw.nbytes for raw in raws]))
    pipe.send_bytes(head)
    for raw in raws:
        pipe.send_bytes(raw)


def _dump(value: Any, buffers: list[pickle.PickleBuffer]) -> bytes:
    def keep(buffer: pickle.PickleBuffer) -> bool:
        """Whether a buffer goes in the message itself."""
        if buffer.raw().nbytes < IN_BAND_BYTES:
            return True
        buffers.append(buffer)
        return False

    stream = io.BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=keep).dump(value)
    return stream.getvalue()


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


def receive(pipe: Connection) -> tuple[list[Part], list[dict[str, Any]], set[str]]:
    sizes = pickle.loads(pipe.recv_bytes())
    head = pipe.recv_bytes()
    buffers = []
    for size in sizes:
        buffer = bytearray(size)
        pipe.recv_bytes_into(buffer)
        buffers.append(buffer)
    parcel: tuple[list[Part], list[dict[str, Any]], set[str]] = pickle.loads(head, buffers=buffers)
    return parcel
