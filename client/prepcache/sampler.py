"""CachedFirstSampler: the order of an epoch in which samples that are cached come first."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from prepcache.dataset import CachedDataset

LOOK_S = 0.5
"""How often it looks for what is cached by now, which takes 20 ms for a million samples."""


class CachedFirstSampler(Sampler[int]):
    """Yields all positions of a data set once per epoch, those of cached samples first.

    Jobs that train together on a cold data set, or on one that is larger than the cache, then read what
    other jobs have preprocessed, and preprocess the rest. Their orders are random and independent.

        sampler = prepcache.CachedFirstSampler(ds)
        loader = torch.utils.data.DataLoader(ds, batch_size=256, sampler=sampler, num_workers=4)

    Distribution: each epoch is a permutation; the cached samples and the others each come in random order.
    The order of the whole epoch is not uniform: while only a part is cached, early batches are drawn from
    that part. Early gradients are biased only if it depends on the content which samples are cached, for
    example if costly samples are cached late. A full cache declines a random part of the data.

    Args:
        ds: a `CachedDataset`, usually with `lazy=True`.
        generator: draws the seed of all epochs; default torch's global generator. With several replicas the
            seed must be the same in all, and is 0 by default.
        num_replicas, rank: this process reads share `rank` of `num_replicas` shares of equal lengths: as in
            torch's `DistributedSampler`, some samples are repeated to make them equal.

    Raises:
        TypeError, ValueError: the data set or the rank is invalid.

    Source: Desai et al., Preparation Meets Opportunity: Enhancing Data Preprocessing for ML Training With
    Seneca, FAST '26, whose opportunistic sampling serves cached data first.
    """

    def __init__(
        self,
        ds: CachedDataset[Any],
        *,
        generator: torch.Generator | None = None,
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        if not isinstance(ds, CachedDataset):
            raise TypeError(f"CachedFirstSampler takes a CachedDataset, not {type(ds).__qualname__}")
        rank, num_replicas = operator.index(rank), operator.index(num_replicas)
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank must be from 0 to num_replicas - 1 = {num_replicas - 1}, not {rank}")
        self._ds = ds
        self._replicas = num_replicas
        self._rank = rank
        self._seed = 0
        if generator is not None or num_replicas == 1:
            self._seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
        self._epoch = 0
        self._given: list[int] = []
        self._is_resumed = False

    def __len__(self) -> int:
        return -(-len(self._ds) // self._replicas)

    def __iter__(self) -> Iterator[int]:
        if self._is_resumed:
            self._is_resumed = False
        else:
            self._epoch += 1
            self._given = []
        return self._positions(self._share(), self._given)

    def _share(self) -> Any:
        """This rank's positions of the epoch, in random order; `int64[len(self)]`."""
        count = len(self._ds)
        order = np.random.default_rng((self._seed, self._epoch)).permutation(count)
        return order[np.arange(self._rank, len(self) * self._replicas, self._replicas) % max(1, count)]

    def _positions(self, left: Any, given: list[int]) -> Iterator[int]:
        left = left[~np.isin(left, given)]  # in a resumed epoch
        ready, looked_at = list[int](), -math.inf
        while len(left) or ready:
            if not ready and (now := time.monotonic()) - looked_at >= LOOK_S:
                is_there, looked_at = self._ds.are_cached(left), now
                ready, left = left[is_there].tolist(), left[~is_there]
            if not ready:  # what is missing is given one by one: meanwhile others may make some of it
                ready, left = [int(left[0])], left[1:]
            given.append(ready.pop())
            yield given[-1]

    def state_dict(self, given: int | None = None) -> dict[str, Any]:
        """The position in the epoch, for `load_state_dict` of a sampler like this one.

        Args:
            given: how many samples of this epoch the job has trained on. By default, all samples that the
                DataLoader has requested, which is more if it prefetches.
        """
        counted = len(self._given) if given is None else operator.index(given)
        if not 0 <= counted <= len(self._given):
            raise ValueError(f"given={given}: this epoch has yielded only {len(self._given)} samples")
        return {
            "seed": self._seed, "epoch": self._epoch, "replicas": self._replicas, "rank": self._rank,
            "samples": len(self._ds), "given": self._given[:counted],
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes the epoch: the next iteration yields the rest of it, and later epochs follow as usual.

        Raises:
            TypeError, ValueError: the state is not from a sampler like this one.
        """
        here = self.state_dict()
        try:
            seed, epoch, *given = map(operator.index, (state["seed"], state["epoch"], *state["given"]))
            wrong = [name for name in ("replicas", "rank", "samples") if state[name] != here[name]]
        except (TypeError, KeyError):
            raise TypeError(f"not a CachedFirstSampler's state: {state!r:.100}") from None
        for name in wrong:
            raise ValueError(f"the state has {name}={state[name]}, but this sampler has {here[name]}")
        self._seed, self._epoch, self._given, self._is_resumed = seed, epoch, given, True
