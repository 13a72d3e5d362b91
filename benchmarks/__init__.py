"""Benchmarks: how far caches of preprocessed samples are from the speed at which memory is copied."""

from __future__ import annotations

from benchmarks.contestants import OWN
from benchmarks.peers import PEERS

CONTESTANTS = {**OWN, **PEERS}
