"""Source files to token ids, with a byte-pair vocabulary that is kept as a file."""

from functools import lru_cache
from pathlib import Path

import torch
from tokenizers import Tokenizer


@lru_cache(maxsize=1)
def load_tokenizer(vocabulary: Path) -> Tokenizer:
    return Tokenizer.from_file(str(vocabulary))


def tokenise(path: Path, vocabulary: Path, max_tokens: int) -> torch.Tensor:
    """One source file as int32[n], n <= max_tokens."""
    text = path.read_text(encoding="utf-8", errors="replace")
    ids = load_tokenizer(vocabulary).encode(text).ids[:max_tokens]
    return torch.tensor(ids, dtype=torch.int32)
