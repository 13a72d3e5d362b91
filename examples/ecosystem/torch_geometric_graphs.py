"""PyTorch Geometric: a graph is cached as a dict of tensors, and `transform=` makes a `Data` of it again."""

from pathlib import Path

import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

import prepcache


def graph(path: Path) -> dict[str, torch.Tensor]:
    """A path graph over the words of a text; `Data.to_dict` turns any graph into such a sample."""
    words = path.read_text().split()
    x = torch.tensor([[float(len(word))] for word in words])
    edges = torch.tensor([[at, at + 1] for at in range(len(words) - 1)]).T
    return Data(x=x, edge_index=edges).to_dict()


def main() -> tuple[list[prepcache.CachedDataset], list[torch.Tensor]]:
    ds = prepcache.CachedDataset(sorted(Path("corpus").glob("*.txt")), graph, transform=Data.from_dict)
    seen = [batch.x.clone() for _ in range(2) for batch in DataLoader(ds, batch_size=4)]
    return [ds], seen


if __name__ == "__main__":
    print(main()[0][0].report())
