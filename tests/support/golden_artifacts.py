"""The samples of the golden artifacts, one list for each file in tests/golden."""

from collections import namedtuple
from typing import Any

import numpy as np
import torch

Point = namedtuple("Point", "x y")

GOLDEN: dict[str, list[list[Any]]] = {
    "dense": [[(torch.arange(n, n + 6, dtype=torch.uint8).reshape(2, 3), n)] for n in range(4)],
    "ragged": [
        [{"ids": torch.arange(n, dtype=torch.int32), "text": "é\udc80\0" * n, "grid": np.ones((n, 2), ">f4")}]
        for n in range(4)
    ],
    "mixed": [
        [],
        [None, True, -1, 2**62, -0.0, float("inf"), "text", b"\xff"],
        [torch.tensor([1.5, -2.0], dtype=torch.bfloat16), torch.tensor(0.5, dtype=torch.float8_e4m3fn)],
        [np.float16(0.1), np.uint16(2020), np.zeros((2, 0), "c16")],
        [np.array([1, 2], ">u2"), torch.tensor([1 + 2j], dtype=torch.complex128)],
        [[(), [], {}, {1: 0, "1": 1, None: 2, False: 3}, Point(1, Point(2, 3))]],
    ],
}
"""Item by item, the samples of each file; items are numbered from 0, as in `support.artifacts`."""
OBSERVED = [
    {"kind": "file", "name": "/data/vocabulary.txt", "digest": "ab" * 32},
    {"kind": "module", "name": "project:é\udc80\\n.py", "digest": "cd" * 32},
]
