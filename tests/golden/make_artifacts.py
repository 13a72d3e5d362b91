"""Writes the golden artifacts anew: python tests/golden/make_artifacts.py (with tests on PYTHONPATH).

Only for a new format version: files written before must stay readable, or their version be refused.
"""

from pathlib import Path

from support.artifacts import write_items
from support.golden_artifacts import GOLDEN, OBSERVED

if __name__ == "__main__":
    here = Path(__file__).parent
    for name, items in GOLDEN.items():
        print(name, write_items(here / f"artifact-{name}.safetensors", items))
    print("observed", write_items(here / "artifact-observed.safetensors", GOLDEN["dense"], observed=OBSERVED))
