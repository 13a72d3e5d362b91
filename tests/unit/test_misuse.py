"""What a user gets wrong at first, and is told in words."""

import os
import pickle
import signal
import subprocess
import sys
import traceback
import types
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import prepcache
from prepcache.dataset_options import check_keywords

pytestmark = pytest.mark.usefixtures("no_daemon")


def scaled(item: int, by: int) -> torch.Tensor:
    return torch.full((3,), item * by)


def raising(item: int) -> int:
    try:
        return [0][item]
    except IndexError as error:
        raise KeyError("no such item") from error


class Scale:
    def by(self, item: int, *, factor: int = 2) -> int:
        return item * factor


def with_any(item: int, **options: int) -> int:
    return item + len(options)


def of_many(*items: int, factor: int) -> int:
    return items[0] * factor


def without() -> int: ...


@pytest.mark.parametrize(
    ("function", "config", "words"),
    [
        (raising, {"facter": 3}, r"raising\(item: .*: got an unexpected keyword argument 'facter'"),
        (Scale().by, {"facter": 3}, r"by\(item: .*: got an unexpected keyword argument 'facter'"),
        (scaled, {"bye": 3}, r"scaled\(item: .* called as scaled\(item, bye=\): missing .*: 'by'; config="),
        (scaled, None, r"scaled\(item: .*: missing a required argument: 'by'"),
        (without, {}, r"without\(\) .* cannot be called as without\(item\): too many"),
    ],
)
def test_a_config_that_does_not_fit_the_function_is_refused(function, config, words):
    with pytest.raises(TypeError, match=f"^{words}"):
        check_keywords(function, config)


@pytest.mark.parametrize("opened", [prepcache.CachedDataset, prepcache.CachedIterableDataset])
def test_a_missing_config_key_is_found_at_the_opening(opened):
    with pytest.raises(TypeError, match=r"^scaled\(item: .*: missing a required argument: 'by'; config= "):
        opened([1], scaled, lazy=True)


@pytest.mark.parametrize(("function", "config"), [
    *((one, {"factor": 3}) for one in (Scale().by, of_many, types.MethodType(of_many, 2))),
    (Scale().by, {}), (partial(scaled, by=2), {}), (partial(scaled, by=2), {"by": 3}),
    (partial(of_many, 1), {"factor": 3}), (with_any, {"any": 1}), (dict, {"key": 2}),
    (torch.nn.Identity(), {}),
])  # fmt: skip
def test_a_config_that_fits_the_function_is_taken(function, config):
    check_keywords(function, config)


@pytest.mark.parametrize(
    ("called", "name"),
    [
        (lambda **options: prepcache.CachedDataset([1], str, **options), "CachedDataset"),
        (lambda **options: prepcache.CachedIterableDataset([1], str, **options), "CachedIterableDataset"),
        (lambda **options: prepcache.cached(str, data=1, **options), "cached"),
        (lambda **options: prepcache.cached(**options), "cached"),
        (lambda **options: prepcache.CachedDataset.wrap([1], key=abs, **options), "CachedDataset.wrap"),
    ],
)
def test_a_misspelt_option_names_what_was_called(called, name):
    with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument 'num_worker'$"):
        called(num_worker=2)


@pytest.mark.parametrize("options", [{}, {"lazy": True}], ids=["at opening", "on access"])
def test_an_error_of_the_function_is_the_cause_of_ours(options):
    with pytest.raises(prepcache.PreprocessError, match=r"item 1 .* failed: KeyError") as raised:
        prepcache.CachedDataset([0, 4], raising, progress=False, **options)[1]
    cause = raised.value.__cause__
    assert isinstance(cause, KeyError) and isinstance(cause.__cause__, IndexError)
    assert traceback.extract_tb(cause.__traceback__)[-1].name == "raising"
    told = traceback.format_exception(raised.value)
    assert told[-1].startswith("prepcache.errors.PreprocessError: preprocessing item 1")
    assert not any("/fill/" in line for line in told), told
    sent = pickle.loads(pickle.dumps(raised.value))
    assert (type(sent), sent.item) == (prepcache.PreprocessError, "4")


def test_a_recipe_brings_its_function_and_options():
    recipe = prepcache.recipe(scaled, config={"by": 3}, version="2", name="mine")
    ds = prepcache.CachedDataset([1, 2], recipe, progress=False)
    assert ds[1].tolist() == [6, 6, 6] and (ds.name, ds.recipe) == ("mine", recipe)
    assert prepcache.CachedDataset([1, 2], ds.recipe, progress=False).recipe == recipe
    assert [s.tolist() for s in prepcache.CachedIterableDataset([4], recipe, progress=False)] == [[12] * 3]
    with pytest.raises(TypeError, match="the recipe already has config, code"):
        prepcache.CachedDataset([1], recipe, {"by": 2}, code="function")  # type: ignore[call-overload]


def test_a_slice_of_a_memmap_is_a_sample(tmp_path):
    from prepcache import artifact
    from support.artifacts import write

    np.arange(12.0).tofile(tmp_path / "raw")
    mapped = np.memmap(tmp_path / "raw", "f8", "r", shape=(3, 4))
    write(tmp_path / "a", [mapped[1], mapped[2]])
    found = artifact.open(tmp_path / "a").sample(1)
    assert type(found) is np.ndarray and found.tolist() == [8.0, 9.0, 10.0, 11.0]
    ds = prepcache.CachedDataset([0, 1], lambda i: mapped[i], version="1", code=None, lazy=True)
    assert type(ds[1]) is np.ndarray and ds[1].tolist() == [4.0, 5.0, 6.0, 7.0]


@pytest.mark.parametrize("name", ["num_workers", "pin_memory", "sampler"])
def test_a_loader_says_what_to_use_for_a_dataloaders_option(name):
    options: Any = {name: 2}
    with pytest.raises(TypeError, match=f"a prepcache.Loader takes no {name}=: .*(thread|device|Subset)"):
        prepcache.Loader([1, 2], 2, **options)


EXPANDED_AND_INTERRUPTED = """
import os, signal, sys
import prepcache

def nothing(item):
    yield from ()

def interrupted(item):
    if item == 3:
        os.kill(os.getpid(), signal.SIGINT)
    yield item

ds = prepcache.CachedDataset([1, 2, 3], nothing, expand=True, version="1", code=None)
assert len(ds) == 0
prepcache.CachedDataset([1, 2, 3], interrupted, expand=True, version="1", code=None)
"""


def test_empty_and_interrupted_fills_are_reported_briefly(tmp_path):
    (tmp_path / "job.py").write_text(EXPANDED_AND_INTERRUPTED)
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "support" / "no_torch")}
    environ["PREPCACHE_URL"] = f"unix://{tmp_path}/nobody.sock"
    command = [sys.executable, str(tmp_path / "job.py")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode in (130, -signal.SIGINT)
    assert "nothing yielded no sample for any of 3 items: is a yield missing?" in done.stderr
    assert "interrupted: 0 of 3 items are stored" in done.stderr
    traceback = done.stderr[done.stderr.index("Traceback") :]
    assert traceback.rstrip().endswith("KeyboardInterrupt"), traceback
    assert traceback.count("/prepcache/") == 1, traceback
