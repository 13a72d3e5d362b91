"""The loader's way to a GPU: pinned buffers, and copies on a stream beside the consumer's.

Devices of other types than CUDA's get plain copies, made when the consumer asks for a batch.

NOT MEASURED: the machine that this was developed on has no GPU. It is kept small for that reason.

Invariants:
    1. A pinned buffer is held until its copy has ended: `_in_flight` refers to it up to then, so the pool
       does not hand it out.
    2. The consumer's stream waits for the copy, on the device, before it may use the batch; and the
       batch's device memory is not given to others before the consumer's stream is done with it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from prepcache.data.buffers import KEPT_BLOCKS, Block, Pool


def _pinned_block(size_bytes: int) -> Block:
    import torch

    # The array refers to the tensor that owns the memory; all views of it refer to the array.
    block: Block = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True).numpy()
    return block


def to_device(device: Any) -> Copier | Sender:
    """What takes batches to a device that is not the CPU.

    Raises:
        RuntimeError: this torch or this machine has no such device.
    """
    import torch

    try:
        return Copier(device) if device.type == "cuda" else Sender(device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).partition("\n")[0][:200]
        mend = f"torch {torch.__version__} has to be built for it, and the machine to have one"
        raise RuntimeError(
            f"device={str(device)!r} cannot be used: {why}; {mend}: without device= batches stay on the CPU"
        ) from error


class Copier:
    """Copies batches to a device.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: Any) -> None:
        import torch

        self._cuda: Any = torch.cuda
        self._device = device
        self._stream = self._cuda.Stream(device)
        self._in_flight: deque[tuple[Any, Any]] = deque()
        self.pool = Pool(2 * KEPT_BLOCKS, _pinned_block, small_bytes=0)

    def begin(self, batch: Any) -> tuple[Any, Any]:
        """Starts to copy a batch; called by the gathering thread."""
        while self._in_flight and self._in_flight[0][0].query():
            self._in_flight.popleft()
        with self._cuda.stream(self._stream):
            copied = map_tensors(batch, lambda tensor: tensor.to(self._device, non_blocking=True))
            done = self._stream.record_event()
        self._in_flight.append((done, batch))
        return copied, done

    def finish(self, begun: tuple[Any, Any]) -> Any:
        """Hands the copy to the consumer's stream; called by the consumer."""
        copied, done = begun
        stream = self._cuda.current_stream(self._device)
        stream.wait_event(done)
        map_tensors(copied, lambda tensor: tensor.record_stream(stream))
        return copied


class Sender:
    """Copies batches to a device of any type, in the consumer's thread: there its device and stream are set.

    Args:
        device: a device.
    """

    def __init__(self, device: Any) -> None:
        import torch

        torch.empty(0, device=device)
        self._device = device
        self.pool = Pool(2 * KEPT_BLOCKS)

    def begin(self, batch: Any) -> Any:
        """Nothing yet."""
        return batch

    def finish(self, batch: Any) -> Any:
        """The batch on the device; its own memory may be used again."""
        return map_tensors(batch, lambda tensor: tensor.to(self._device))


def map_tensors(batch: Any, function: Any) -> Any:
    """The batch with each tensor in it replaced; containers of the types that collation makes."""
    import torch

    if isinstance(batch, torch.Tensor):
        return function(batch)
    if isinstance(batch, dict):
        return type(batch)((key, map_tensors(child, function)) for key, child in batch.items())
    if isinstance(batch, (list, tuple)) and not (batch and isinstance(batch[0], (str, bytes))):
        children = [map_tensors(child, function) for child in batch]
        return type(batch)(*children) if hasattr(batch, "_fields") else type(batch)(children)
    return batch
