"""torchdata's StatefulDataLoader: the state is saved in mid-epoch, with workers, and loaded again."""

import warnings
from pathlib import Path

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import prepcache

# torchdata 0.11 calls a function of torch that is deprecated since; each loader would warn.
warnings.filterwarnings("ignore", message="'set_vital' is deprecated")


def load(path: Path, length: int) -> torch.Tensor:
    codes = torch.tensor(list(path.read_bytes()[:length]), dtype=torch.float32)
    return torch.nn.functional.pad(codes, (0, length - len(codes)))


def main() -> tuple[list[prepcache.CachedDataset], list[torch.Tensor]]:
    ds = prepcache.CachedDataset(sorted(Path("corpus").glob("*.txt")), load, config={"length": 32})

    def loader() -> StatefulDataLoader:
        torch.manual_seed(0)
        return StatefulDataLoader(ds, batch_size=2, shuffle=True, num_workers=2)

    whole = [batch.clone() for batch in loader()]
    first = loader()
    batches = iter(first)
    seen = [next(batches).clone() for _ in range(3)]
    state = first.state_dict()
    second = loader()
    second.load_state_dict(state)
    seen += [batch.clone() for batch in second]
    assert len(seen) == len(whole) and all(map(torch.equal, seen, whole))
    return [ds], seen


if __name__ == "__main__":
    print(main()[0][0].report())
