"""What the tests of streams open, in jobs of their own (jobs.py)."""

SHARED = """
import torch
from torch.utils.data import DataLoader

N = 90

def make(item):
    called(item)
    return torch.full((8,), item, dtype=torch.float32)

def numbers():
    yield from range(N)

def opened(how, **options):
    items = {"list": list(range(N)), "function": numbers, "again": dict.fromkeys(range(N)).keys()}
    return prepcache.CachedIterableDataset(items[how], make, progress=False, **options)

def values(samples):
    return [int(sample[0]) for sample in samples]
"""
