"""Benchmarks: how far caches of preprocessed samples are from the speed at which memory is copied."""

import compileall
from pathlib import Path

from benchmarks.contestants import OWN
from benchmarks.peers import PEERS

CONTESTANTS = {**OWN, **PEERS}
_REPO = Path(__file__).resolve().parents[1]


def compile_sources() -> None:
    """Makes the bytecode that an installation has, so that no start pays for a compiler."""
    for name in ("client", "server"):
        compileall.compile_dir(_REPO / name, quiet=1)
