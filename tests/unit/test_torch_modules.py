"""Modules of torch that do not let themselves be pickled: parametrized ones, scripts, scripted functions."""

import multiprocessing
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from prepcache.errors import UnkeyableError
from prepcache.keys.recipes import recipe
from support.projects import Project


class Digest(Protocol):
    def __call__(self, text: str, target: str = "prep.f", calls: int = 0) -> str: ...


def _digest(folder: Path, text: str, target: str, calls: int) -> str:
    """In a process of its own: what torch compiles twice in one has another name there."""
    import torch

    sys.dont_write_bytecode = True
    project = Project(folder)
    project.put("prep.py", text)
    with project.on_path():
        module = project.load()
        function = getattr(module, target.partition(".")[2])
        for _ in range(calls):
            function(torch.ones(3, 2))
        try:
            return recipe(function, code="function").digest
        except UnkeyableError as error:
            return str(error)


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    context = multiprocessing.get_context("forkserver")
    # The last is what tracing loads, in a second.
    context.set_forkserver_preload(
        ["torch", "prepcache.keys.recipes", "torch.fx.experimental.symbolic_shapes"]
    )
    with context.Pool(1, maxtasksperchild=1) as made:
        yield made


@pytest.fixture
def digest(pool: Any, tmp_path: Path) -> Digest:
    def digest_of(text: str, target: str = "prep.f", calls: int = 0) -> str:
        found: str = pool.apply(_digest, (tmp_path / "proj", text, target, calls))
        return found

    return digest_of


SCRIPT = """
import torch

{more}
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((2,), {weight}))
        self.bias = torch.tensor({bias})
        self.names = {names}

    def forward(self, x):
        return x {operator} self.weight + self.bias

NET = torch.jit.script(Net())
NET.__dict__["scale"] = {beside}

def f(x):
    with torch.no_grad():
        return NET(x)
"""
SAID = {"weight": "1.0", "bias": "2.0", "names": "['a']", "operator": "*", "more": "", "beside": "1"}


def test_a_torch_script_counts_by_code_and_state(digest):
    """Not by where it stands, nor by what calls compile."""
    before = digest(SCRIPT.format(**SAID))
    assert digest(SCRIPT.format(**SAID | {"more": "\n" * 40}), calls=3) == before
    for one in ({"weight": "1.5"}, {"bias": "2.5"}, {"operator": "/"}, {"beside": "2"}, {"names": "['b']"}):
        assert digest(SCRIPT.format(**SAID | one)) != before, one


LOADED = """
import torch
LINEAR = torch.nn.utils.skip_init(torch.nn.Linear, 1, 1, bias=False)
torch.nn.init.constant_(LINEAR.weight, {weight})
torch.jit.script(LINEAR).save(FILE := __file__ + "{name}")
del LINEAR
NET = torch.jit.load(FILE)
def f(x): return NET(x)
"""


def test_a_script_that_is_loaded_from_a_file_counts_by_its_bytes(digest):
    before = digest(LOADED.format(weight=1.0, name="1.pt"))
    assert digest(LOADED.format(weight=1.0, name="2.pt")) == before
    assert digest(LOADED.format(weight=2.0, name="1.pt")) != before


FUNCTIONS = """
import torch
W = torch.tensor({constant})
@torch.jit.script
def inner(x: torch.Tensor): return x + {added}
@torch.jit.script
def outer(x: torch.Tensor): return inner(x) * {factor}
TRACED = torch.jit.trace(lambda x: x * W, torch.ones(2))
del W
def f(x): return outer(x)
def g(x): return TRACED(x)
"""


def test_scripted_functions_count_by_code_and_callees(digest):
    said = {"constant": "[1.0, 2.0]", "added": "1", "factor": "2"}
    before = digest(FUNCTIONS.format(**said))
    assert digest(FUNCTIONS.format(**said), calls=3) == before
    for one in ({"added": "3"}, {"factor": "3"}):
        assert digest(FUNCTIONS.format(**said | one)) != before, one
    other = FUNCTIONS.format(**said | {"constant": "[1.0, 3.0]"})
    assert digest(FUNCTIONS.format(**said), "prep.g") != digest(other, "prep.g")


PARAMETRIZED = """
import torch
from torch.nn.utils import parametrizations, parametrize

class Scale(torch.nn.Module):
    def forward(self, x): return x * {factor}

class Dense(torch.nn.Linear):
    def forward(self, x): return super().forward(x) + {added}

torch.manual_seed(0)
NET = Dense(2, 2)
with torch.no_grad():
    NET.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, {weight}]]))
{how}
NET.eval()

def f(x):
    return NET(x)
"""


@pytest.mark.parametrize(
    "how",
    ["parametrizations.weight_norm(NET)", "parametrize.register_parametrization(NET, 'weight', Scale())"],
)
def test_a_parametrized_module_counts_by_all_its_parts(digest, how):
    said = {"factor": "2", "added": "0", "weight": "1.0", "how": how}
    before = digest(PARAMETRIZED.format(**said))
    assert digest(PARAMETRIZED.format(**said), calls=2) == before
    for one in ({"added": "1"}, {"weight": "1.5"}, {"how": "pass"}):
        assert digest(PARAMETRIZED.format(**said | one)) != before, one
    assert (digest(PARAMETRIZED.format(**said | {"factor": "3"})) != before) is ("Scale" in how)
