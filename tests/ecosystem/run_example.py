"""Runs one example's `main()` and prints, as JSON, a digest of what it trained on and what was computed.

python run_example.py examples/ecosystem/audio_cuts.py
"""

import hashlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np


def computed(part: Any) -> tuple[int, int]:
    """Samples computed and found: of a data set by its report, of a rank as it said itself."""
    if isinstance(part, int):
        return part, 0
    report = part.report()
    return report.computed, report.hit


def main(path: Path) -> None:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    data_sets, tensors = module.main()
    digest = hashlib.sha256()
    for tensor in tensors:
        array = np.ascontiguousarray(tensor)
        digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    counts = [computed(part) for part in data_sets]
    print(json.dumps({
        "digest": digest.hexdigest(),
        "tensors": len(tensors),
        "computed": sum(made for made, _ in counts),
        "hit": sum(found for _, found in counts),
    }))  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
