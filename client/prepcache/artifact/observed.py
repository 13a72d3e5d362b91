"""Observed inputs as an artifact holds them: one text, which is taken apart only for who asks.

    base64(zlib(kind NUL name NUL digest NUL kind ...)), "" for none

There may be a hundred thousand of them in each of hundreds of artifacts, and who maps an artifact has heard
of them from the daemon.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from prepcache.errors import ArtifactError

MAX_TEXT_BYTES = 32 << 20
"""Unpacked."""
MAX_INPUTS = 1 << 18
WAY_OUT = "if the function opens that many files, put their paths in the items"
_NAMES = ("kind", "name", "digest")


def pack(observed: Iterable[Mapping[str, str]]) -> str:
    """
    Args:
        observed: of each its kind, name and digest; none of them has a NUL in it.

    Raises:
        ArtifactError: they are more than `unpack` takes.
    """
    fields = [one[name] for one in observed for name in _NAMES]
    if any("\0" in field for field in fields):
        raise ValueError("an observed input contains a NUL")
    if not fields:
        return ""
    text = "\0".join(fields).encode("utf-8", "surrogatepass")
    if len(fields) > len(_NAMES) * MAX_INPUTS or len(text) > MAX_TEXT_BYTES:
        raise ArtifactError(f"too many observed inputs: {len(fields) // len(_NAMES)} ({WAY_OUT})")
    return base64.b64encode(zlib.compress(text, 1)).decode()


def unpack(packed: Any) -> list[dict[str, str]]:
    """Takes observed inputs apart, as `pack` put them together.

    Raises:
        ValueError: these are no observed inputs, or more than any artifact has.
    """
    if type(packed) is not str:
        raise ValueError("observed inputs are not text")
    if not packed:
        return []
    inflate = zlib.decompressobj()
    try:
        raw = inflate.decompress(base64.b64decode(packed, validate=True), MAX_TEXT_BYTES)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"observed inputs are malformed: {error}") from None
    fields = raw.decode("utf-8", "surrogatepass").split("\0", len(_NAMES) * MAX_INPUTS)
    if not inflate.eof or inflate.unused_data or len(fields) % len(_NAMES):
        raise ValueError("observed inputs are malformed, or too many")
    kinds, names, digests = (fields[n :: len(_NAMES)] for n in range(len(_NAMES)))
    found = zip(kinds, names, digests, strict=True)
    return [{"kind": kind, "name": name, "digest": digest} for kind, name, digest in found]
