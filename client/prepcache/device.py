"""The loader's way to a GPU: pinned buffers, and copies on a stream beside the consumer's.

Devices of other types than CUDA's get plain copies, made when the consumer asks for a batch.

It is tested without a GPU, with a stand-in whose copies are made as late, or as early, as they may be.

Invariants:
    1. A pinned buffer is held until its copy has ended: `_in_flight` refers to it up to then, so the pool
       does not hand it out, and torch, which cannot tell from an array within a block that a copy reads it,
       does not give its memory to others when the loader is gone.
    2. The consumer's stream waits for the copy, on the device, before it may use the batch; and the
       batch's device memory is not given to others before the consumer's stream is done with it.
    3. What is no dense tensor, and so cannot be kept for a stream, is copied when the consumer asks for it.
    4. All copies of a loader go to one device: the one that was current when it was made, where `device`
       has no number.

Locking: `_lock` guards `_in_flight` and the order of copies: each epoch that is being iterated has a thread.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import Any

from prepcache.artifact.sample_tree import rebuilt
from prepcache.batching.buffers import KEPT_BLOCKS, Block, Pool


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
        mend = f"torch {torch.__version__} must be built for it, and the machine must have one"
        raise RuntimeError(
            f"device={str(device)!r} cannot be used: {why}; {mend}. Without device=, batches stay on the CPU"
        ) from error


class Copier:
    """Copies batches to a device.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: Any) -> None:
        import torch

        self._cuda: Any = torch.cuda
        self._device = torch.device(
            "cuda", self._cuda.current_device() if device.index is None else device.index
        )
        self._stream = self._cuda.Stream(self._device)
        self._lock = threading.Lock()
        self._in_flight: deque[tuple[Any, Any]] = deque()
        weakref.finalize(self, _wait_for, self._in_flight).atexit = False
        self.pool = Pool(2 * KEPT_BLOCKS, _pinned_block, small_bytes=0)

    def begin(self, batch: Any) -> tuple[Any, Any]:
        """Starts to copy a batch; called by the gathering thread."""
        with self._lock:
            while self._in_flight and self._in_flight[0][0].query():
                self._in_flight.popleft()
            with self._cuda.stream(self._stream):
                copied = map_tensors(batch, self._copied)
                done = self._stream.record_event()
            self._in_flight.append((done, batch))
        return copied, done

    def finish(self, begun: tuple[Any, Any]) -> Any:
        """Hands the copy to the consumer's stream; called by the consumer."""
        copied, done = begun
        stream = self._cuda.current_stream(self._device)
        stream.wait_event(done)
        return map_tensors(copied, lambda tensor: self._received(tensor, stream))

    def _copied(self, tensor: Any) -> Any:
        return tensor.to(self._device, non_blocking=True) if _is_dense(tensor) else tensor

    def _received(self, tensor: Any, stream: Any) -> Any:
        if not _is_dense(tensor):
            return tensor.to(self._device)
        tensor.record_stream(stream)
        return tensor


def _is_dense(tensor: Any) -> bool:
    import torch

    return tensor.layout is torch.strided and not tensor.is_nested


def _wait_for(in_flight: deque[tuple[Any, Any]]) -> None:
    """Holds pinned buffers until their copies have ended."""
    for done, _ in in_flight:
        done.synchronize()


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

    packed = torch.nn.utils.rnn.PackedSequence

    def mapped(_: Any, leaf: Any) -> Any:
        if isinstance(leaf, packed):
            values, sizes, *orders = leaf  # the sizes stay on the CPU: torch reads them there
            orders = [None if order is None else function(order) for order in orders]
            return packed(function(values), sizes, *orders)
        return function(leaf) if isinstance(leaf, torch.Tensor) else leaf

    return rebuilt(batch, mapped, whole=packed)
