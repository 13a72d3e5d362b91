"""How the function is called: the same wherever the job stands when it asks for a sample."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import pytest
import torch

import prepcache
from prepcache.fill.call import Job


def product(x: int) -> torch.Tensor:
    return torch.full((8, 8), 1.01) @ torch.full((8, 8), float(x))


def products(x: int) -> Iterator[torch.Tensor]:
    yield product(x)
    yield product(x)


def own(x: int) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return product(x)


def interrupted(x: int) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_on_access_shows_the_line_that_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREPCACHE", "off")
    ds = prepcache.CachedDataset([1], interrupted, code=None, version=1, lazy=True, progress=False)
    with pytest.raises(KeyboardInterrupt) as caught:
        ds[0]
    assert len(traceback.extract_tb(caught.value.__traceback__)) <= 4, "this line, and three of ours"


@pytest.mark.parametrize("is_expanded", [False, True])
def test_a_step_in_lower_precision_around_is_not_the_functions(is_expanded: bool) -> None:
    """A lazy data set is read in the middle of one, and its samples are everybody's."""
    job = Job(products if is_expanded else product, {}, is_expanded)
    expected = job.call(0, 3)
    with torch.autocast("cpu", torch.bfloat16):
        found = job.call(0, 3)
        assert product(3).dtype == torch.bfloat16, "as it was, afterwards"
    assert [sample.dtype for sample in found] == [torch.float32] * len(expected)
    assert all(map(torch.equal, found, expected))


def test_the_functions_own_precision_is_its_own() -> None:
    (sample,) = Job(own, {}).call(0, 3)
    assert sample.dtype == torch.bfloat16
