"""Parts as a forked worker sends them to its parent.

torch's own pickling would move tensors into shared memory, one file each. Here they travel as arrays.
"""

from __future__ import annotations

import io
import pickle
import sys
import traceback
from typing import Any

from prepcache.fill.call import Part


def dumped(part: Part) -> tuple[bytes, bool]:
    """A part as a copy in bytes, for `loaded`, and whether it is the last one of its item: a part that does
    not pickle ends its item, with what its writer says of it."""
    try:
        return _dump(part), part.is_last
    except Exception as error:  # noqa: BLE001 - a foreign object's own pickling may raise anything
        end = part.looked_at()
        return _dump(end if end.refusal is not None else Part(part.index, [], True, part.cost_s, error)), True


def loaded(raw: bytes) -> Part:
    return Part(*pickle.loads(raw))


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
    part, stream = _picklable(part), io.BytesIO()
    fields = (
        part.index, part.samples, part.is_last, part.cost_s, part.error, part.refusal, part.unobserved,
        part.notices,
    )  # fmt: skip
    _Pickler(stream, protocol=5).dump(fields)
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
