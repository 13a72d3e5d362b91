"""Many samples out of one file: python examples/text_lines.py FILE [--length 32]

The usual data set class for this keeps one .pt beside the text, made by its own script, and forgets to make
it anew when either of the two changes. Here the file is the item, `expand=True` says that it yields many
samples, and both are in the key.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch

import prepcache
from show import summary


def lines(path: Path, length: int) -> Iterator[tuple[torch.Tensor, int]]:
    """Each line that is not blank: its first bytes as uint8[length] (zeros behind), and how many they are."""
    for line in path.read_bytes().splitlines():
        text = line.strip()[:length]
        if text:
            row = torch.zeros(length, dtype=torch.uint8)
            row[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
            yield row, len(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--length", type=int, default=32)
    args = parser.parse_args()

    rows = prepcache.CachedDataset(
        [args.file], lines, config={"length": args.length}, root=args.file.parent, expand=True
    )
    for text, used in torch.utils.data.DataLoader(rows, batch_size=64):
        print(f"first batch: {tuple(text.shape)}, {used.float().mean():.1f} bytes a line")
        break
    print(summary(rows))


if __name__ == "__main__":
    main()
