"""Writes the golden artifacts anew: python tests/golden/make_artifacts.py (with tests on PYTHONPATH).

Only for a new format version: files written before must stay readable, or their version be refused.
"""

from __future__ import annotations

from pathlib import Path

from support.artifacts import write_items
from support.golden_artifacts import GOLDEN, OBSERVED

if __name__ == "__main__":
    for name, items in GOLDEN.items():
        written = write_items(
            Path(__file__).with_name(f"artifact-{name}.safetensors"), items, observed=OBSERVED
        )
        print(name, written)
