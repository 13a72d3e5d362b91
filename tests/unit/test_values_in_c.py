"""Values that keep their state in C, do not reduce, and can be asked for it all the same."""

from __future__ import annotations

import io
import weakref
from typing import Any

import pytest

from prepcache.keys.recipes import recipe
from support.projects import Project, changes, project_fixture  # noqa: F401


class Plain:
    def __init__(self, **state: Any) -> None:
        vars(self).update(state)


def digest_of(value: Any) -> str:
    def f(x: Any, value: Any) -> Any:
        return x

    return recipe(f, config={"value": value}).digest


def test_a_weak_reference_counts_by_what_it_refers_to() -> None:
    one, same, other = Plain(n=1), Plain(n=1), Plain(n=2)
    assert digest_of(weakref.ref(one)) == digest_of(weakref.ref(same))
    assert digest_of(weakref.ref(one)) != digest_of(weakref.ref(other))
    gone = weakref.ref(other)
    before = digest_of(gone)
    del other
    assert digest_of(gone) != before


class Buffer(io.BytesIO):
    pass


@pytest.mark.parametrize("value", [io.BytesIO(b"a"), io.StringIO("a"), Buffer(b"a"), ValueError("a")])
def test_lazily_cached_attributes_do_not_change_the_key(value: Any) -> None:
    before = digest_of(value)
    assert vars(value) == {}
    assert digest_of(value) == before
    value.more = 1
    assert digest_of(value) != before


@pytest.mark.parametrize("code", ["script", "function"])
def test_a_structure_of_ctypes_counts_by_its_fields(project: Project, code: Any) -> None:
    """Headers of binary files are read so. What ctypes makes of each field follows from them."""
    text = "import ctypes\nclass H(ctypes.{}):\n    _fields_ = [('a', ctypes.{}), ('b', ctypes.{})]\n"
    digests = []
    for made_of in (
        ("LittleEndianStructure", "c_int8", "c_int8 * 4"),
        ("LittleEndianStructure", "c_int8", "c_int8 * 4"),
        ("LittleEndianStructure", "c_uint8", "c_int8 * 4"),
        ("LittleEndianStructure", "c_int8", "c_int8 * 5"),
        ("BigEndianStructure", "c_int8", "c_int8 * 4"),
    ):
        project.write(prep=text.format(*made_of) + "def f(x): return H.from_buffer_copy(x).a\n")
        digests.append(recipe(project.load().f, code=code).digest)
    assert digests[0] == digests[1]
    assert len(set(digests)) == 4
