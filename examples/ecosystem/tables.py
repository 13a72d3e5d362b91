"""Tables: pandas, polars and Parquet (pyarrow). Rows are items; a column's values count, not its labels."""

from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader

import prepcache


def from_row(row: dict[str, Any]) -> torch.Tensor:
    return torch.tensor([row["length"], float(len(row["text"]))])


def row_group(item: tuple[Path, int]) -> torch.Tensor:
    """One row group of a Parquet file; the whole file counts for it."""
    path, number = item
    return torch.from_numpy(pq.ParquetFile(path).read_row_group(number)["length"].to_numpy().copy())


def main() -> tuple[list[prepcache.CachedDataset], list[torch.Tensor]]:
    texts = [path.read_text() for path in sorted(Path("corpus").glob("*.txt"))]
    frame = pd.DataFrame({"text": texts, "length": [float(len(text)) for text in texts]})
    by_pandas = prepcache.CachedDataset(frame.to_dict("records"), from_row)
    by_polars = prepcache.CachedDataset(pl.from_pandas(frame).to_dicts(), from_row)
    parquet = Path("table.parquet")
    if not parquet.exists():
        frame.to_parquet(parquet, row_group_size=4)
    groups = [(parquet, number) for number in range(pq.ParquetFile(parquet).num_row_groups)]
    by_group = prepcache.CachedDataset(groups, row_group)
    seen = [batch.clone() for _ in range(2) for batch in DataLoader(by_pandas, batch_size=4)]
    assert torch.equal(by_polars[3], by_pandas[3])  # the same rows: polars finds what pandas has made
    return [by_pandas, by_polars, by_group], [*seen, *(by_group[at] for at in range(len(by_group)))]


if __name__ == "__main__":
    print(main()[0][0].report())
