"""A training job: a small language model over the tokens of a folder of Python sources.

python examples/train_lm.py DATA VOCABULARY [--max-tokens 4096] [--steps 20] [--summary FILE]
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from torch import nn

import prepcache
from show import digest
from tokens import tokenise

CONTEXT = 64


class Model(nn.Module):
    """Next-token prediction with one recurrent layer.

    Shape: int64[batch, time] -> float32[batch, time, vocabulary]
    """

    def __init__(self, vocabulary: int, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.mix = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.mix(self.embed(ids))[0])


def windows(rows: list[torch.Tensor]) -> torch.Tensor:
    """A random window of each ragged row, zeros behind short ones: int64[batch, CONTEXT + 1]."""
    batch = torch.zeros(len(rows), CONTEXT + 1, dtype=torch.int64)
    for line, row in zip(batch, rows, strict=True):
        start = int(torch.randint(max(1, len(row) - CONTEXT), ()))
        piece = row[start : start + CONTEXT + 1]
        line[: len(piece)] = piece
    return batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("vocabulary", type=Path)
    parser.add_argument("--max-tokens", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--summary", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)

    began = time.perf_counter()
    data = prepcache.CachedDataset(
        sorted(args.data.rglob("*.py")),
        tokenise,
        config={"vocabulary": args.vocabulary, "max_tokens": args.max_tokens},
        root=args.data,
        name="tokenise",
    )
    ready_s = time.perf_counter() - began
    on_access = len(data) - data.cached()
    state = f"ready after {ready_s:.2f} s"
    if on_access:  # without the cache, being open means nothing: the work is still to be done
        state = f"open after {ready_s:.2f} s, {on_access} of them to preprocess whenever they are used"

    size = len(json.loads(args.vocabulary.read_text())["model"]["vocab"])
    model = Model(size)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True, collate_fn=windows)
    loss = torch.tensor(float("nan"))
    for step, batch in enumerate(loader):
        if step == args.steps:
            break
        logits = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    print(f"job {os.getpid()}: {len(data)} files {state}, loss {loss.item():.2f}")

    if args.summary:
        report = data.report()
        facts = {
            "items": report.items,
            "hit": report.hit,
            "computed": report.computed,
            "waited": report.waited,
            "bytes": report.bytes,
            "ready_s": ready_s,
            "digest": digest(data[i] for i in range(len(data))),
        }
        args.summary.write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
