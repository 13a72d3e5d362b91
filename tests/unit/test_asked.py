"""Objects that keep their state in C count by what they tell; lists inside themselves by where they close."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from multiprocessing.shared_memory import ShareableList, SharedMemory
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import pytest

from prepcache.errors import UnkeyableError
from prepcache.keys.recipes import recipe
from support.projects import Project, changes, project_fixture  # noqa: F401


def digest_of(value: Any) -> str:
    def f(x: int) -> Any:
        return value, x

    return recipe(f, code="function").digest


class Closed:
    """State in C, which does not let itself be pickled."""

    def __reduce_ex__(self, _: Any) -> Any:
        raise TypeError("it cannot be pickled")


def of_library(monkeypatch: pytest.MonkeyPatch, module: str, name: str, **members: Any) -> Any:
    cls = type(name, (Closed,), {"__module__": module, "__slots__": (), **members})
    home = ModuleType(module)
    home.__file__ = os.__file__  # of no project
    setattr(home, name, cls)
    monkeypatch.setitem(sys.modules, module, home)
    return cls()


@pytest.fixture
def shared() -> Iterator[SharedMemory]:
    made = SharedMemory(create=True, size=16)
    yield made
    made.close()
    made.unlink()


def test_shared_memory_counts_by_its_bytes_not_by_its_name(shared: SharedMemory) -> None:
    before = digest_of(shared)
    shared.buf[3] = 7
    assert digest_of(shared) != before
    other = SharedMemory(create=True, size=16)
    try:
        other.buf[3] = 7
        assert digest_of(other) == digest_of(shared)
    finally:
        other.close()
        other.unlink()


def test_a_list_in_shared_memory_counts_by_its_elements() -> None:
    made = [ShareableList([1, "a"]), ShareableList([1, "a"])]
    try:
        assert digest_of(made[0]) == digest_of(made[1])
        made[1][0] = 2
        assert digest_of(made[0]) != digest_of(made[1])
    finally:
        for one in made:
            one.shm.close()
            one.shm.unlink()


def test_shared_memory_that_is_closed_is_refused(shared: SharedMemory) -> None:
    shared.close()
    with pytest.raises(UnkeyableError, match="it is closed"):
        digest_of(shared)


def test_a_decoder_of_json_counts_by_its_settings() -> None:
    assert digest_of(json.JSONDecoder()) == digest_of(json.JSONDecoder())
    assert digest_of(json.JSONDecoder(strict=False)) != digest_of(json.JSONDecoder())
    assert digest_of(json.JSONDecoder(parse_float=str)) != digest_of(json.JSONDecoder())


def test_a_scanner_counts_by_its_settings() -> None:
    """It has taken that over when it was made."""
    one, other = json.JSONDecoder(), json.JSONDecoder(parse_int=float)
    before = digest_of(one)
    one.scan_once = other.scan_once
    assert digest_of(one) != before


def a_generator(monkeypatch: pytest.MonkeyPatch, described: str, **options: Any) -> Any:
    """As rdkit's: neither of the two descriptions tells all."""
    shown = SimpleNamespace(**options, SetCountBounds=print)
    members = {"ToJSON": lambda _: described, "GetOptions": lambda _: shown}
    return of_library(monkeypatch, "rdkit.Chem.rdFingerprintGenerator", "FingerprintGenerator64", **members)


def test_a_fingerprint_generator_counts_by_its_descriptions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = [
        ("{}", {"radius": 2}),
        ("{}", {"radius": 2}),
        ("{}", {"radius": 3}),
        ('{"bounds":[1]}', {"radius": 2}),
    ]
    digests = [digest_of(a_generator(monkeypatch, described, **options)) for described, options in made]
    assert digests[0] == digests[1] and len(set(digests)) == 3


def test_a_generator_of_features_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    described = '{"atomInvariantsGenerator":{"type":"MorganFeatureAtomInvGenerator"}}'
    with pytest.raises(UnkeyableError, match="does not tell the patterns of its features"):
        digest_of(a_generator(monkeypatch, described, radius=2))


def test_a_function_of_boost_counts_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """It passes for one of Python's, but has no `__qualname__`."""
    home = ModuleType("rdkit.Chem.rdmolfiles")
    monkeypatch.setitem(sys.modules, home.__name__, home)
    passes = {"__class__": property(lambda _: FunctionType)}
    kind = type(of_library(monkeypatch, "Boost.Python", "function", **passes))
    for name in ("MolFromSmiles", "MolFromSmarts"):
        one = kind()
        vars(one).update(__module__=home.__name__, __name__=name)
        setattr(home, name, one)
    digests = {digest_of(one) for name, one in vars(home).items() if name.startswith("Mol")}
    assert len(digests) == 2
    delattr(home, "MolFromSmarts")
    with pytest.raises(UnkeyableError, match="not what its module has under its name"):
        digest_of(one)


def a_node(monkeypatch: pytest.MonkeyPatch, written: str, at: str, encoding: str = "UTF-8") -> Any:
    """As an element of lxml's: a place in a document, which is in C."""
    declared = SimpleNamespace(encoding=encoding, standalone=None, xml_version="1.0")
    document = SimpleNamespace(docinfo=declared, getpath=lambda _: at)
    node = of_library(monkeypatch, "lxml.etree", "_Element", getroottree=lambda _: document)
    vars(sys.modules["lxml.etree"])["tostring"] = lambda _, encoding: written.encode(encoding)
    return node


def test_an_element_counts_by_its_document_and_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ("<a><b/>x</a>", "/a")
    same, others = first, [("<a><b/>y</a>", "/a"), ("<a><b/>x</a>", "/a/b"), (*first, "ASCII")]
    digests = [digest_of(a_node(monkeypatch, *told)) for told in (first, same, *others)]
    assert digests[0] == digests[1] and len(set(digests)) == 4


def test_a_tree_counts_by_its_root(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    for root in (a_node(monkeypatch, "<a/>", "/a"), None, a_node(monkeypatch, "<b/>", "/b")):
        tree = type(
            "_ElementTree", (Closed,), {"__module__": "lxml.etree", "getroot": lambda _, root=root: root}
        )()
        digests.append(digest_of(tree))
    assert len(set(digests)) == 3


# -- circles ----------------------------------------------------------------------------------------------


PARSER = """
import argparse
PARSER = argparse.ArgumentParser()
PARSER.add_argument_group("how").add_argument("--size", type=int, default={})
def f(x): return PARSER.format_help(), x
"""


def test_a_parser_of_arguments_counts_by_what_it_takes(project: Project) -> None:
    """Its groups share a list with it, in which they stand themselves."""
    project.write(prep=PARSER.format(1))
    assert not changes(project, lambda: None, code="function")
    assert not changes(project, lambda: project.load().PARSER.parse_args([]), code="function")
    assert changes(project, lambda: project.write(prep=PARSER.format(2)), code="function")


def test_where_a_circle_closes_counts() -> None:
    def circle(depth: int) -> Any:
        inner: list[Any] = [1]
        lists = [inner]
        for _ in range(3):
            lists.append([lists[-1]])
        inner.append(lists[depth])
        return lists[-1]

    def table() -> Any:
        made: dict[str, Any] = {"a": 1}
        made["itself"] = [made]
        return made

    digests = [digest_of(circle(depth)) for depth in (0, 1, 2, 3, 3)] + [digest_of(table())]
    assert digests[3] == digests[4] and len(set(digests)) == 5


def test_an_object_in_a_cycle_counts_by_what_it_reaches() -> None:
    """Its bytes speak of the list that it was first met in."""

    def pair(is_own: bool) -> tuple[Any, Any]:
        first: list[Any] = []
        first.append(Plain(first))
        second: list[Any] = [0]
        second.append(Plain(second) if is_own else first[0])
        return first, second

    assert digest_of(pair(False)) != digest_of(pair(True))


class Plain:
    def __init__(self, of: Any) -> None:
        self.of = of


# -- libraries of cffi ------------------------------------------------------------------------------------

LIBRARY = """
class Type:
    packed = False

class FFI:
    def __init__(self, text):
        declarations = {f"function {text}": (Type(), 0)}
        self._cdefsources, self._parser = [text], type("Parser", (), {"_declarations": declarations})

    def dlopen(self, name):
        return _make_ffi_library(self, name)

def _make_ffi_library(ffi, name):
    class FFILibrary:
        def __getattr__(self, asked):
            vars(self)[asked] = FFILibrary  # a pointer, in cffi
            return FFILibrary
        def __dir__(self):
            return ffi._cdefsources
    if name:
        FFILibrary.__name__ = f"FFILibrary_{name}"
    return FFILibrary()
"""


def test_a_cffi_library_counts_by_file_and_declarations(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.put("site-packages/cffi/api.py", LIBRARY)
    project.put("site-packages/cffi/__init__.py", "from cffi.api import FFI\n")
    monkeypatch.syspath_prepend(str(project.folder / "site-packages"))
    library = project.put("libmine.so", "1")
    text = "import cffi\nL = cffi.FFI({!r}).dlopen({!r})\ndef f(x): return L.twice(x)\n"
    project.write(prep=text.format("int twice(int);", str(library)))
    module = project.load()
    before = recipe(module.f, code="function").digest
    assert module.L.twice
    assert recipe(module.f, code="function").digest == before, "what was asked for does not count"
    digests = {before}
    for declared, content in (("long twice(long);", "1"), ("int twice(int);", "2")):
        project.write(prep=text.format(declared, str(library)))
        project.put("libmine.so", content)
        digests.add(recipe(project.load().f, code="function").digest)
    assert len(digests) == 3
    project.write(prep=text.format("int twice(int);", ""))
    with pytest.raises(UnkeyableError, match="it is of no library with a name"):
        recipe(project.load().f)
