"""Operators of torch's dispatcher: by name and schema, and by the code or the library that brought them."""

from __future__ import annotations

import pytest
import torch

from prepcache.errors import UnkeyableError
from prepcache.keys.recipes import recipe
from support.projects import Project, changes, project_fixture  # noqa: F401

FUNCTION = {"code": "function"}
CUSTOM = """
import torch
@torch.library.custom_op("keyed_{0}::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * {1}
def f(x): return {2}
"""
CALLS = {"by its name": "torch.ops.keyed_{0}.twice(x)", "by its function": "twice(x)"}


def test_operators_of_torch_count_by_their_names(project: Project) -> None:
    digests = []
    for text in ("aten.relu(x)", "aten.relu.default(x)", "aten.tanh(x)", "aten.relu(x)"):
        project.write(prep=f"import torch\ndef f(x): return torch.ops.{text}")
        digests.append(project.digest(**FUNCTION))
    assert digests[0] == digests[3] and len(set(digests)) == 3
    project.write(prep="import torch\nOP = torch.ops.aten.relu\ndef f(x): return OP(x)")
    before = project.digest(**FUNCTION)
    project.write(prep="import torch\nOP = torch.ops.aten.tanh\ndef f(x): return OP(x)")
    assert project.digest(**FUNCTION) != before


@pytest.mark.parametrize("call", CALLS)
def test_a_custom_operator_counts_by_its_functions(project: Project, call: str) -> None:
    name, text = call.replace(" ", "_"), CALLS[call]
    digests = []
    for factor in (2, 2, 3):
        project.write(prep=CUSTOM.format(name, factor, text.format(name)))
        module = project.load()
        digests.append(recipe(module.f, **FUNCTION).digest)
        assert module.f(torch.ones(1)) == factor
        assert recipe(module.f, **FUNCTION).digest == digests[-1], "its first call changes nothing"
    assert digests[0] == digests[1] != digests[2]


def test_an_operator_that_nothing_tells_of_is_refused(project: Project) -> None:
    library = torch.library.Library("keyed_unknown", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    project.write(prep="import torch\ndef f(x): return torch.ops.keyed_unknown.twice(x)")
    with pytest.raises(UnkeyableError, match=r"keyed_unknown::twice.*torch\.library\.custom_op"):
        project.recipe(**FUNCTION)
