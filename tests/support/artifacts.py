"""Artifacts for tests: writing them, comparing samples to the bit, and taking headers apart."""

import contextlib
import json
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prepcache import artifact
from prepcache.artifact.writer import Writer
from prepcache.artifact.writer import merge as merged
from prepcache.digests import RecipeDigest

RECIPE = RecipeDigest("5a" * 32)


def digest(number: int) -> bytes:
    """A distinct item digest."""
    return number.to_bytes(32, "big")


def write(
    path: Path,
    samples: Iterable[Any],
    *,
    first: int = 0,
    recipe: RecipeDigest = RECIPE,
    observed: Sequence[dict[str, Any]] = (),
) -> artifact.Document:
    """One item for each sample, numbered from `first`, at a cost of its number in seconds."""
    return write_items(path, [[sample] for sample in samples], first=first, recipe=recipe, observed=observed)


def write_items(
    path: Path,
    items: Iterable[Sequence[Any]],
    *,
    first: int = 0,
    recipe: RecipeDigest = RECIPE,
    observed: Sequence[dict[str, Any]] = (),
) -> artifact.Document:
    """The same for items of any number of samples."""
    writer = Writer(recipe)
    for number, samples in enumerate(items, first):
        writer.add(digest(number), samples, float(number))
    with open(path, "wb") as file:
        return writer.write(file, producer={"name": "test"}, observed=observed)


def merge(path: Path, sources: Sequence[Path]) -> artifact.Document:
    """Merges into a new file."""
    with contextlib.ExitStack() as stack:
        fds = [stack.enter_context(source.open("rb")).fileno() for source in sources]
        out = stack.enter_context(path.open("xb"))
        return merged(fds, [artifact.check(fd) for fd in fds], out.fileno(), producer={"name": "test"})


def samples_of(found: artifact.Artifact) -> list[Any]:
    """All its samples, as copies."""
    return [found.sample(row) for row in range(found.rows)]


def same(left: Any, right: Any) -> bool:
    """Whether two samples are of the same types throughout and equal to the bit; byte order aside."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(
            type(a) is type(b) for a, b in zip(left, right, strict=True)
        ) and all(same(left[key], right[key]) for key in left)  # fmt: skip
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and left.shape == right.shape and _bits(left) == _bits(right)
    if isinstance(left, (np.ndarray, np.generic)):
        left, right = (one.astype(one.dtype.newbyteorder("="), copy=False) for one in (left, right))
        return left.dtype == right.dtype and left.shape == right.shape and _same_values(left, right)
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right)
    return bool(left == right)


def _same_values(left: Any, right: Any) -> bool:
    """Bit for bit, but for padding behind the 10 bytes of an x87 long double."""
    if left.dtype.char in "gG":
        raw = [np.frombuffer(values.tobytes(), "u1").reshape(-1, 16)[:, :10] for values in (left, right)]
        return bool((raw[0] == raw[1]).all())
    return bool(left.tobytes() == right.tobytes())


def _bits(tensor: torch.Tensor) -> bytes:
    if tensor.numel() == 0:
        return b""  # torch gives some of them strides that it cannot view as bytes
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def rewrite(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """Changes the header (tensors by name, and the document) of an artifact in place, data as they are."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    strings = header["__metadata__"]
    document = json.loads(strings["document"])
    change(header, document)
    if "document" in strings:
        strings["document"] = json.dumps(document, separators=(",", ":"))
    replace_header(path, json.dumps(header, separators=(",", ":")).encode())


def replace_header(path: Path, text: bytes) -> None:
    """Puts another header before the data of an artifact, padded to the page."""
    raw = path.read_bytes()
    data = raw[8 + int.from_bytes(raw[:8], "little") :]
    text += b" " * (-(8 + len(text)) % 4096)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def patch_tensor(path: Path, name: str, values: np.ndarray[Any, Any]) -> None:
    """Overwrites the first bytes of a tensor."""
    raw = bytearray(path.read_bytes())
    length = int.from_bytes(raw[:8], "little")
    begin, end = json.loads(bytes(raw[8 : 8 + length]))[name]["data_offsets"]
    data = values.tobytes()
    assert len(data) <= end - begin
    raw[8 + length + begin : 8 + length + begin + len(data)] = data
    path.write_bytes(bytes(raw))
