"""Contestants that need nothing but torch: the limit, what people write by hand, and prepcache.

A contestant stores a workload once (`prepare`), and opens what it stored as often as it is asked: `open`
gives a function that makes one shuffled epoch, an iterable of (values, numbers).
"""

import os
import subprocess
import sys
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from benchmarks.workloads import WORKLOADS, Workload

FOLIO_BYTES = 2 << 20
"""What a processor maps with one entry."""

Batches = Iterable[Any]
Epoch = Callable[[], Batches]


class Contestant(ABC):
    """A way to keep samples.

    Args:
        workload: what is kept.
        folder: where; its own.
    """

    needs: tuple[str, ...] = ()
    """Modules that it imports beside torch and numpy."""
    workers: tuple[int, ...] = (0, 2)
    """Numbers of DataLoader workers that it is tried with; the best counts."""

    def __init__(self, workload: Workload, folder: Path) -> None:
        self.workload = workload
        self.folder = folder
        self.transform: Callable[[Any], Any] | None = None
        """Of each sample, on every access."""

    def takes(self) -> bool:
        """Whether it can keep this workload."""
        return True

    def expected(self, number: int) -> Any:
        """The array that it gives for a sample."""
        return self.workload.array(number)

    @abstractmethod
    def prepare(self) -> None:
        """Stores all samples. Called once for a folder."""

    @abstractmethod
    def open(self, workers: int) -> Epoch:
        """Opens what is stored, as a job at its start does."""

    def clean_up(self) -> None:  # noqa: B027 - most leave nothing
        """Ends what outlives a job. Called once, when all jobs have ended."""

    def loader(self, dataset: Any, workers: int, **more: Any) -> Epoch:
        """Epochs of a plain DataLoader."""
        if self.workload.is_ragged:
            more.setdefault("collate_fn", pad_sequences)
        if self.transform is not None and not hasattr(dataset, "transform"):
            dataset = _Transformed(dataset, self.transform)
        loader: Any = DataLoader(
            dataset,
            batch_size=self.workload.batch_size,
            num_workers=workers,
            persistent_workers=workers > 0,
            **more,
        )
        return lambda: loader


class _Transformed(Dataset[Any]):
    """Samples of a data set, transformed."""

    def __init__(self, dataset: Any, transform: Callable[[Any], Any]) -> None:
        self.dataset, self.transform = dataset, transform

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.dataset[i])


def pad_sequences(samples: list[Any]) -> tuple[Any, Any]:
    """What people write for rows that differ in length."""
    rows = [torch.as_tensor(row) for row, _ in samples]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor([int(n) for _, n in samples])


class RowsOfOneLength(Contestant):
    """As many bytes as the samples have, copied as rows of their mean length."""

    workers = (0,)

    def _path(self) -> Path:
        return self.folder / "flat.bin"

    def takes(self) -> bool:
        return self.workload.is_ragged

    def expected(self, number: int) -> Any:
        return np.resize(self.workload.array(number), self.workload.flat_shape)

    def prepare(self) -> None:
        kept = bytearray()
        with open(self._path(), "wb", 0) as file:  # by large folios: scattered pages are slower to read
            for number in range(self.workload.count):
                kept += self.expected(number).tobytes()
                while len(kept) >= FOLIO_BYTES:
                    file.write(memoryview(kept)[:FOLIO_BYTES])
                    kept = kept[FOLIO_BYTES:]
            file.write(kept)

    def flat(self) -> Any:
        """All rows, mapped."""
        load = self.workload
        return np.memmap(self._path(), load.dtype, "r", shape=(load.count, *load.flat_shape))

    def open(self, workers: int) -> Epoch:
        load, flat = self.workload, self.flat()
        values = np.empty((load.batch_size, *load.flat_shape), load.dtype)

        def epoch() -> Iterator[Any]:
            order = np.random.permutation(load.count)
            for start in range(0, load.count, load.batch_size):
                chosen = order[start : start + load.batch_size]
                flat.take(chosen, 0, values[: len(chosen)], "clip")
                yield values[: len(chosen)], chosen

        return epoch


class EndToEnd(NamedTuple):
    """Samples that differ in length."""

    values: Any
    offsets: Any


class Limit(RowsOfOneLength):
    """`numpy.memmap` and `take(out=, mode="clip")` into one reused buffer: what copying the bytes costs.

    Of samples that differ in length it takes the elements: those lie in a flat array, end to end, and where
    each batch's are is worked out before. Then all epochs have one order.
    """

    def takes(self) -> bool:
        return True

    def expected(self, number: int) -> Any:
        return Contestant.expected(self, number)

    def open(self, workers: int) -> Epoch:
        if not self.workload.is_ragged:
            return super().open(workers)
        flat = np.memmap(self._path(), self.workload.dtype, "r").reshape(self.workload.row_shape)
        batches = list(self._elements())
        longest = max(len(places) for places, _, _ in batches)
        buffer = np.empty((longest, *flat.shape[1:]), flat.dtype)

        def epoch() -> Iterator[Any]:
            for places, offsets, chosen in batches:
                flat.take(places, 0, buffer[: len(places)], "clip")
                yield EndToEnd(buffer, offsets), chosen

        return epoch

    def _elements(self) -> Iterator[tuple[Any, Any, Any]]:
        """Batches of an epoch: where their elements are, where samples begin and end there, and which."""
        load = self.workload
        ends = np.cumsum([0, *(len(load.array(number)) for number in range(load.count))])
        order = np.random.permutation(load.count)
        for start in range(0, load.count, load.batch_size):
            chosen = order[start : start + load.batch_size]
            places = np.concatenate([np.arange(ends[number], ends[number + 1]) for number in chosen])
            lengths = ends[chosen + 1] - ends[chosen]
            yield places, np.cumsum([0, *lengths]), chosen


class _Indices(Dataset[Any]):
    """Batches are the indices that they are of."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitems__(self, indices: list[int]) -> Any:
        return np.frombuffer(array("q", indices), np.int64)


class LimitInLoader(RowsOfOneLength):
    """A `DataLoader` around nothing but the limit's copy, of rows and of numbers."""

    def takes(self) -> bool:
        return not self.workload.is_ragged

    def open(self, workers: int) -> Epoch:
        load, flat, numbers = self.workload, self.flat(), np.arange(self.workload.count)
        buffers = [np.empty((load.batch_size, *load.flat_shape), load.dtype) for _ in range(2)]

        def copy(at: Any) -> Any:
            buffers.append(buffers.pop(0))
            rows = flat.take(at, 0, buffers[-1][: len(at)], "clip")
            return torch.from_numpy(rows), torch.from_numpy(numbers.take(at))

        return self.loader(_Indices(load.count), workers, shuffle=True, collate_fn=copy)


class Nothing(Contestant):
    """A `DataLoader` of numbers alone: what it takes without a copy; with workers, what the exchange takes.

    Who hands a batch over by its numbers needs so long and, after it, as long as the limit for the copy.
    """

    def expected(self, number: int) -> Any:
        return np.array([number])

    def prepare(self) -> None:
        pass

    def open(self, workers: int) -> Epoch:
        return self.loader(_Indices(self.workload.count), workers, shuffle=True, collate_fn=_numbered)


def _numbered(numbers: Any) -> Any:
    return numbers.reshape(-1, 1), numbers


class _Whole(Dataset[Any]):
    """Samples in a list."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: int) -> Any:
        return self.samples[i]


class InMemory(Contestant):
    """Tensors in a list, made at the start; the quickest that a plain data set gets."""

    def prepare(self) -> None:
        pass

    def open(self, workers: int) -> Epoch:
        samples = [self.workload.sample(number) for number in range(self.workload.count)]
        return self.loader(_Whole(samples), workers, shuffle=True)


class OneFile(Contestant):
    """One `.pt` file with a list of samples, loaded whole."""

    def prepare(self) -> None:
        samples = [self.workload.sample(number) for number in range(self.workload.count)]
        torch.save(samples, self.folder / "all.pt")

    def open(self, workers: int) -> Epoch:
        return self.loader(_Whole(torch.load(self.folder / "all.pt")), workers, shuffle=True)


class _Mapped(Dataset[Any]):
    """One `numpy.memmap` for each field, a row at a time."""

    def __init__(self, workload: Workload, folder: Path) -> None:
        self.offsets = np.load(folder / "offsets.npy")
        self.numbers = np.load(folder / "numbers.npy", mmap_mode="r")
        self.values = np.memmap(folder / "values.bin", workload.dtype, "r")
        self.shape = workload.row_shape

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, i: int) -> Any:
        row = np.array(self.values[self.offsets[i] : self.offsets[i + 1]])
        return torch.from_numpy(row.reshape(self.shape)), int(self.numbers[i])


class MemoryMapped(Contestant):
    """A memory-mapped data set class, as a careful person writes it."""

    def prepare(self) -> None:
        ends = [0]
        with open(self.folder / "values.bin", "wb") as file:
            for number in range(self.workload.count):
                array = self.workload.array(number)
                file.write(array.tobytes())
                ends.append(ends[-1] + array.size)
        np.save(self.folder / "offsets.npy", np.array(ends))
        np.save(self.folder / "numbers.npy", np.arange(self.workload.count))

    def open(self, workers: int) -> Epoch:
        return self.loader(_Mapped(self.workload, self.folder), workers, shuffle=True)


def preprocess(number: int, workload: str) -> Any:
    """What prepcache and the other caches of functions are given."""
    return WORKLOADS[workload].sample(number)


class Prepcache(Contestant):
    """prepcache, in a plain DataLoader, on a daemon of its own."""

    needs = ("prepcache",)

    def dataset(self) -> Any:
        import prepcache

        os.environ["XDG_CACHE_HOME"] = os.environ["XDG_RUNTIME_DIR"] = str(self.folder)
        return prepcache.CachedDataset(
            range(self.workload.count),
            preprocess,
            config={"workload": self.workload.name},
            code=None,
            version="1",
            transform=self.transform,
            name=f"benchmark {self.workload.name}",
        )

    def prepare(self) -> None:
        self.dataset().prepare()

    def clean_up(self) -> None:
        here = {"XDG_CACHE_HOME": str(self.folder), "XDG_RUNTIME_DIR": str(self.folder)}
        stop = [sys.executable, "-m", "prepcached", "stop"]  # its socket is elsewhere if this path is long
        subprocess.run(stop, env=os.environ | here, check=False, capture_output=True)

    def open(self, workers: int) -> Epoch:
        import prepcache

        more = {"collate_fn": prepcache.pad_collate(leaves=["0"])} if self.workload.is_ragged else {}
        return self.loader(self.dataset(), workers, shuffle=True, **more)


class Packed(Prepcache):
    """prepcache, with rows end to end."""

    def takes(self) -> bool:
        return self.workload.is_ragged

    def open(self, workers: int) -> Epoch:
        import prepcache

        return self.loader(
            self.dataset(), workers, shuffle=True, collate_fn=prepcache.pack_collate(leaves=["0"])
        )


class Loader(Prepcache):
    """`prepcache.Loader`: batches gathered ahead."""

    workers = (0,)

    def open(self, workers: int) -> Epoch:
        import prepcache

        collate = prepcache.pad_collate(leaves=["0"]) if self.workload.is_ragged else None
        loader = prepcache.Loader(self.dataset(), self.workload.batch_size, shuffle=True, collate_fn=collate)
        return lambda: loader


class _Rows(Dataset[Any]):
    """Rows of artifacts, without a daemon."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Any:
        return self.rows.sample(i)

    def __getitems__(self, indices: Any) -> Any:
        return self.rows.take(indices)


class ManyArtifacts(Contestant):
    """prepcache's gather, from as many artifacts as a fill by many jobs leaves before they are merged."""

    needs = ("prepcache",)
    workers = (0,)
    artifacts = 200

    def prepare(self) -> None:
        from prepcache.artifact.writer import Writer
        from prepcache.digests import RecipeDigest

        for part, numbers in enumerate(np.array_split(np.arange(self.workload.count), self.artifacts)):
            writer = Writer(RecipeDigest("0" * 64))
            for number in numbers.tolist():
                writer.add(number.to_bytes(32, "big"), [self.workload.sample(number)], 0.0)
            with open(self.folder / f"{part:03d}", "wb") as file:
                writer.write(file, producer={})

    def dataset(self) -> Dataset[Any]:
        from prepcache import artifact
        from prepcache.batching.gather import Rows

        opened = [artifact.open(self.folder / f"{part:03d}") for part in range(self.artifacts)]
        art_of = np.repeat(np.arange(len(opened)), [one.rows for one in opened])
        row_of = np.concatenate([np.arange(one.rows) for one in opened])
        return _Rows(Rows(opened, art_of, row_of))

    def open(self, workers: int) -> Epoch:
        import prepcache

        more = {"collate_fn": prepcache.pad_collate(leaves=["0"])} if self.workload.is_ragged else {}
        return self.loader(self.dataset(), workers, shuffle=True, **more)


class FiveArtifacts(ManyArtifacts):
    """As many as a large data set has for each 100 MB."""

    artifacts = 5


class PartOfFive(FiveArtifacts):
    """A `Subset` of them."""

    def dataset(self) -> Dataset[Any]:
        order = np.random.default_rng(0).permutation(self.workload.count)
        return Subset(super().dataset(), order.tolist())


OWN: dict[str, type[Contestant]] = {
    "limit": Limit,
    "limit in a DataLoader": LimitInLoader,
    "numbers in a DataLoader": Nothing,
    "rows of one length": RowsOfOneLength,
    "prepcache": Prepcache,
    "prepcache packed": Packed,
    "prepcache.Loader": Loader,
    "prepcache, 200 artifacts": ManyArtifacts,
    "prepcache, 5 artifacts": FiveArtifacts,
    "prepcache, Subset of 5": PartOfFive,
    "in-memory tensors": InMemory,
    "one .pt file": OneFile,
    "memory-mapped class": MemoryMapped,
}
