"""MindSpore: a `GeneratorDataset` over a cached data set, by threads and by processes, and over a stream.

A sample is a tuple of arrays: MindSpore 2.10 cannot take numpy scalars with NumPy 2.
"""

from pathlib import Path

import mindspore.dataset
import numpy as np

import prepcache


def load(path: Path, length: int) -> tuple[np.ndarray, np.ndarray]:
    codes = np.frombuffer(path.read_bytes()[:length], dtype=np.uint8).astype(np.float32)
    return np.pad(codes, (0, length - len(codes))), codes.mean(keepdims=True)


def main() -> tuple[list[prepcache.CachedDataset], list[np.ndarray]]:
    paths = sorted(Path("corpus").glob("*.txt"))
    ds = prepcache.CachedDataset(paths, load, config={"length": 32})
    stream = prepcache.CachedIterableDataset(paths, load, config={"length": 32})
    seen = []
    for source, options in (
        (ds, {}),
        (ds, {"num_parallel_workers": 2, "python_multiprocessing": False}),
        (ds, {"num_parallel_workers": 2, "python_multiprocessing": True}),
        (stream, {}),
    ):
        batches = mindspore.dataset.GeneratorDataset(
            source, column_names=["codes", "mean"], shuffle=False, **options
        ).batch(4)
        for _ in range(2):
            seen += [codes for codes, _ in batches.create_tuple_iterator(num_epochs=1, output_numpy=True)]
    return [ds, stream], seen


if __name__ == "__main__":
    print(main()[0][0].report())
