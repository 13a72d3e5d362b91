"""Contestants that must be installed: caches and dataset formats that people use. `make peers` installs them.

Each is used as its documentation shows, with bytes where it offers a choice; whatever gives single samples
goes through a plain DataLoader.
"""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from benchmarks.contestants import Contestant, Epoch, preprocess


class _Keyed(Dataset[Any]):
    """Samples that `get(number)` reads, opened anew in each process."""

    def __init__(self, count: int, opened: Any) -> None:
        self.count, self.opened, self.get, self.pid = count, opened, None, 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        if self.pid != os.getpid():
            self.get, self.pid = self.opened(), os.getpid()
        return self.get(i)  # type: ignore[misc]


class _Stored(Contestant):
    """What keeps bytes under a key: the sample's array and number, to be taken apart again."""

    def pack(self, number: int) -> bytes:
        return number.to_bytes(8, "little") + self.workload.array(number).tobytes()

    def unpack(self, raw: Any) -> Any:
        values = np.frombuffer(bytearray(raw[8:]), self.workload.dtype)
        return torch.from_numpy(values.reshape(self.workload.row_shape)), int.from_bytes(raw[:8], "little")


class Lmdb(_Stored):
    needs = ("lmdb",)

    def prepare(self) -> None:
        import lmdb

        size = self.workload.count * (self.workload.sample_bytes + 4096) * 2
        with lmdb.open(str(self.folder), map_size=size) as env, env.begin(write=True) as transaction:
            for number in range(self.workload.count):
                transaction.put(number.to_bytes(8, "big"), self.pack(number))

    def open(self, workers: int) -> Epoch:
        import lmdb

        def opened() -> Any:
            env = lmdb.open(str(self.folder), readonly=True, lock=False, readahead=False)
            transaction = env.begin(buffers=True)
            return lambda i: self.unpack(transaction.get(i.to_bytes(8, "big")))

        return self.loader(_Keyed(self.workload.count, opened), workers, shuffle=True)


class DiskCache(_Stored):
    needs = ("diskcache",)

    def prepare(self) -> None:
        with self._cache() as cache:
            for number in range(self.workload.count):
                cache[number] = self.pack(number)

    def _cache(self) -> Any:
        import diskcache

        return diskcache.Cache(str(self.folder), size_limit=1 << 40)

    def open(self, workers: int) -> Epoch:
        def opened() -> Any:
            cache = self._cache()
            return lambda i: self.unpack(cache[i])

        return self.loader(_Keyed(self.workload.count, opened), workers, shuffle=True)


class Joblib(Contestant):
    needs = ("joblib",)

    def _function(self) -> Any:
        import joblib

        return joblib.Memory(str(self.folder), verbose=0).cache(preprocess)

    def prepare(self) -> None:
        function = self._function()
        for number in range(self.workload.count):
            function(number, self.workload.name)

    def open(self, workers: int) -> Epoch:
        def opened() -> Any:
            function = self._function()
            return lambda i: function(i, self.workload.name)

        return self.loader(_Keyed(self.workload.count, opened), workers, shuffle=True)


class MonaiPersistent(Contestant):
    needs = ("monai",)

    def _dataset(self) -> Any:
        from monai.data import PersistentDataset

        items = [{"number": number} for number in range(self.workload.count)]
        return PersistentDataset(items, self._transform(), cache_dir=self.folder)

    def _transform(self) -> Any:
        from monai.transforms import Lambda

        return Lambda(func=self._make)

    def _make(self, item: Any) -> Any:
        return preprocess(item["number"], self.workload.name)

    def prepare(self) -> None:
        dataset = self._dataset()
        for number in range(self.workload.count):
            dataset[number]

    def open(self, workers: int) -> Epoch:
        return self.loader(self._dataset(), workers, shuffle=True)


class MonaiCache(MonaiPersistent):
    def prepare(self) -> None:
        pass

    def _dataset(self) -> Any:
        from monai.data import CacheDataset

        items = [{"number": number} for number in range(self.workload.count)]
        return CacheDataset(items, self._transform(), progress=False, copy_cache=False)


class HuggingFace(_Stored):
    """Raw bytes columns; a batched transform takes them apart."""

    needs = ("datasets",)

    def prepare(self) -> None:
        import datasets

        def rows() -> Iterator[Any]:
            for number in range(self.workload.count):
                yield {"raw": self.workload.array(number).tobytes(), "number": number}

        features = datasets.Features(raw=datasets.Value("large_binary"), number=datasets.Value("int64"))
        made = datasets.Dataset.from_generator(rows, features=features, cache_dir=str(self.folder / "made"))
        made.save_to_disk(str(self.folder / "data"))

    def open(self, workers: int) -> Epoch:
        import datasets

        dataset = datasets.load_from_disk(str(self.folder / "data"))
        return self.loader(dataset, workers, shuffle=True, collate_fn=self._collate)

    def _collate(self, rows: list[Any]) -> Any:
        samples = [self.unpack(row["number"].to_bytes(8, "little") + row["raw"]) for row in rows]
        return torch.utils.data.default_collate(samples)

    def takes(self) -> bool:
        return not self.workload.is_ragged


class HuggingFaceTorch(HuggingFace):
    """As documented: array columns, `with_format("torch")`."""

    def prepare(self) -> None:
        import datasets

        def rows() -> Iterator[Any]:
            for number in range(self.workload.count):
                yield {"values": self.workload.array(number), "number": number}

        axes = len(self.workload.flat_shape)
        array = {3: datasets.Array3D, 2: datasets.Array2D}[axes]
        dtype = np.dtype(self.workload.dtype).name
        features = datasets.Features(
            values=array(self.workload.flat_shape, dtype), number=datasets.Value("int64")
        )
        made = datasets.Dataset.from_generator(rows, features=features, cache_dir=str(self.folder / "made"))
        made.save_to_disk(str(self.folder / "data"))

    def _collate(self, rows: list[Any]) -> Any:
        dtype = getattr(torch, np.dtype(self.workload.dtype).name)
        values = torch.stack([row["values"] for row in rows]).to(dtype)
        return values, torch.stack([row["number"] for row in rows])

    def open(self, workers: int) -> Epoch:
        import datasets

        dataset = datasets.load_from_disk(str(self.folder / "data")).with_format("torch")
        return self.loader(dataset, workers, shuffle=True, collate_fn=self._collate)


class LitData(Contestant):
    needs = ("litdata",)

    def prepare(self) -> None:
        import litdata

        litdata.optimize(
            fn=self.workload.sample,
            inputs=list(range(self.workload.count)),
            output_dir=str(self.folder / "data"),
            chunk_bytes="64MB",
            num_workers=1,
        )

    def open(self, workers: int) -> Epoch:
        import litdata

        dataset = litdata.StreamingDataset(str(self.folder / "data"), shuffle=True, drop_last=False)
        collate = {"collate_fn": _pad()} if self.workload.is_ragged else {}
        size = self.workload.batch_size
        loader = litdata.StreamingDataLoader(dataset, batch_size=size, num_workers=workers, **collate)
        return lambda: loader


class Mosaic(_Stored):
    needs = ("benchmarks.mosaic",)

    def prepare(self) -> None:
        from benchmarks.mosaic import streaming

        columns = {"values": "bytes", "number": "int"}
        with streaming.MDSWriter(
            out=str(self.folder / "data"), columns=columns, size_limit=1 << 26
        ) as writer:
            for number in range(self.workload.count):
                writer.write({"values": self.workload.array(number).tobytes(), "number": number})

    def open(self, workers: int) -> Epoch:
        from benchmarks.mosaic import streaming

        streaming.base.util.clean_stale_shared_memory()
        data = str(self.folder / "data")
        size = self.workload.batch_size
        dataset = streaming.StreamingDataset(local=data, shuffle=True, batch_size=size)
        return self.loader(dataset, workers, collate_fn=self._collate)

    def _collate(self, rows: list[Any]) -> Any:
        samples = [self.unpack(row["number"].to_bytes(8, "little") + row["values"]) for row in rows]
        return _pad()(samples) if self.workload.is_ragged else torch.utils.data.default_collate(samples)


class WebDataset(_Stored):
    needs = ("webdataset",)

    def prepare(self) -> None:
        import webdataset

        pattern = str(self.folder / "shard-%06d.tar")
        with webdataset.ShardWriter(pattern, maxsize=1 << 26, verbose=0) as writer:
            for number in range(self.workload.count):
                writer.write({"__key__": f"{number:08d}", "raw": self.pack(number)})

    def open(self, workers: int) -> Epoch:
        import webdataset

        shards = sorted(str(path) for path in self.folder.glob("shard-*.tar"))
        dataset = (
            webdataset.WebDataset(shards, shardshuffle=100).shuffle(1000).to_tuple("raw").map(self._first)
        )
        return self.loader(dataset, min(workers, len(shards)))

    def _first(self, row: Any) -> Any:
        return self.unpack(row[0])


def _pad() -> Any:
    from benchmarks.contestants import pad_sequences

    return pad_sequences


PEERS: dict[str, type[Contestant]] = {
    "MONAI CacheDataset": MonaiCache,
    "MONAI PersistentDataset": MonaiPersistent,
    "HF datasets, bytes": HuggingFace,
    "HF datasets, torch format": HuggingFaceTorch,
    "LMDB": Lmdb,
    "diskcache": DiskCache,
    "joblib": Joblib,
    "LitData": LitData,
    "Mosaic MDS": Mosaic,
    "WebDataset": WebDataset,
}
