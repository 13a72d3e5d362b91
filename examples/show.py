"""What the examples print at their end: what was there, what was preprocessed, a digest of every sample."""

import json
from collections.abc import Iterable
from typing import Any

import torch
from blake3 import blake3


def digest(samples: Iterable[Any]) -> str:
    """BLAKE3 over dtype, shape and bytes of every tensor leaf (and the repr of every other), in order."""
    hasher = blake3()
    for sample in samples:
        for leaf in sample if isinstance(sample, tuple) else (sample,):
            if isinstance(leaf, torch.Tensor):
                hasher.update(f"{leaf.dtype} {tuple(leaf.shape)} ".encode())
                hasher.update(leaf.contiguous().numpy().tobytes())
            else:
                hasher.update(repr(leaf).encode())
    return str(hasher.hexdigest())


def summary(ds: Any) -> str:
    """One line of JSON: the report of a data set, its length, and the digest of its samples."""
    report = ds.report()
    return json.dumps(
        {
            "items": report.items,
            "hit": report.hit,
            "computed": report.computed,
            "waited": report.waited,
            "samples": len(ds),
            "bytes": report.bytes,
            "digest": digest(ds[i] for i in range(len(ds))),
        }
    )
