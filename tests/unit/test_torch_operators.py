"""Operators of torch: its own count by name, those of the job are refused."""

from __future__ import annotations

import pytest

from prepcache.errors import UnkeyableError
from support.projects import Project, project_fixture  # noqa: F401

FUNCTION = {"code": "function"}


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


CUSTOM = """
import torch
@torch.library.custom_op("keyed::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2
def f(x): return {}
"""


@pytest.mark.parametrize("call", ["torch.ops.keyed.twice(x)", "twice(x)"])
def test_an_operator_of_the_jobs_is_refused_by_its_name(project: Project, call: str) -> None:
    project.write(prep=CUSTOM.format(call))
    with pytest.raises(UnkeyableError, match=r"twice.*call the function that it is made of.*untracked="):
        project.recipe(**FUNCTION)
