"""How many calls of ours a sample and a batch cost: a reader walks them, and so does every step of a job."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from prepcache import CachedDataset


def make(item: int) -> tuple[torch.Tensor, int]:
    return torch.full((3, 4), item), item


def profiled(note: Callable[[FrameType, str, Any], None], function: Callable[[], Any]) -> None:
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)


def calls(function: Callable[[], Any]) -> list[str]:
    """The functions of ours that it calls, once all that is kept is kept."""
    function()
    found: list[str] = []

    def note(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call" and "/client/prepcache/" in frame.f_code.co_filename:
            found.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}")

    profiled(note, function)
    return found


def modules(called: list[str]) -> set[str]:
    return {name.partition(":")[0] for name in called}


def test_a_sample_and_a_batch_cost_few_calls(client):
    ds = CachedDataset(list(range(50)), make, progress=False, client=client)
    sample = calls(lambda: ds[7])
    assert len(sample) <= 10 and len(modules(sample)) <= 3, sample
    fetcher = _MapDatasetFetcher(ds, True, default_collate, False)  # type: ignore[no-untyped-call]
    batch = calls(lambda: fetcher.fetch([1, 2, 3]))  # type: ignore[no-untyped-call]
    assert len(batch) <= 27 and len(modules(batch)) <= 6, batch


FIRST_USE = """
import sys
import prepcache

def make(item, by):
    return item * by

ds = prepcache.CachedDataset(list(range(5)), make, {"by": 2}, progress=False)
assert ds[3] == 6
ours = sorted(name for name in sys.modules if name.partition(".")[0] == "prepcache")
print(ds.report().hit, len(ours), *ours)
"""


def test_a_job_whose_samples_are_there_loads_60_modules(box):
    (box.folder / "job.py").write_text(FIRST_USE)
    for _ in range(2):
        hit, count, *ours = box.python(box.folder / "job.py").stdout.split()
    assert (hit, int(count) <= 60) == ("5", True), ours


def frames_above(event: str, names: set[str], function: Callable[[], Any]) -> list[list[str]]:
    """The functions of ours above each call of these C functions."""
    found: list[list[str]] = []

    def note(frame: FrameType | None, kind: str, arg: Any) -> None:
        if kind == event and getattr(arg, "__name__", "") in names:
            above = []
            while frame is not None:
                if "/client/prepcache/" in frame.f_code.co_filename:
                    above.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}")
                frame = frame.f_back
            found.append(above)

    profiled(note, function)
    return found


def test_one_resolve_is_few_frames_deep(client):
    def opened() -> CachedDataset[Any]:
        return CachedDataset(list(range(5)), make, progress=False, client=client)

    opened()
    sent = frames_above("c_call", {"send", "sendall"}, opened)
    assert sent and max(map(len, sent)) <= 8, sent
