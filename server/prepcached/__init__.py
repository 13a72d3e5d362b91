"""prepcached: the daemon that keeps preprocessed tensors for the jobs of a box."""

from __future__ import annotations
