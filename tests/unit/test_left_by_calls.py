"""What a call leaves in an object of a library is no input of the next data set; what it is set to is."""
# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prepcache.errors import UnkeyableError
from prepcache.keys.drift import drift
from prepcache.keys.recipes import recipe
from support.projects import Project, project_fixture  # noqa: F401

LIBRARIES = {
    "transformers/__init__.py": '''
from tokenizers import Tokenizer, models, pre_tokenizers

class PreTrainedTokenizerBase:
    """As in transformers: each call sets the modes of the backend to what it was asked for."""

    def __init__(self, side):
        self._tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 2, "b": 3}, unk_token="[UNK]"))
        self._tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        self.side = side
        self.deprecation_warnings = {}

    @property
    def backend_tokenizer(self):
        return self._tokenizer

    def __call__(self, text, max_length):
        self._tokenizer.enable_truncation(max_length)
        self._tokenizer.enable_padding(length=max_length, direction=self.side)
        self.deprecation_warnings["asked"] = True
        return self._tokenizer.encode(text).ids

class Fast(PreTrainedTokenizerBase): ...

class Stateful(PreTrainedTokenizerBase):
    def __getstate__(self):
        return dict(vars(self))
''',
    "albumentations/__init__.py": '''
class BasicTransform:
    """As in albumentations: it keeps the parameters of its last call."""

    def __init__(self, size):
        self.size, self.params = size, {}

    def __call__(self, x):
        self.params = {"shape": len(x)}
        return x * self.size

class Resize(BasicTransform): ...
''',
    "sklearn/__init__.py": '''
class BinaryTree64:
    """As in sklearn: it counts how often it was asked."""

    def __init__(self, leaf_size):
        self.state = ((), (), (), (), leaf_size, 1, 2, 0, 0, 0, 0, "metric", None)

    def __reduce__(self):
        return BinaryTree64.__new__, (BinaryTree64,), self.state

    def query(self, x):
        trims, leaves, splits, calls = self.state[7:11]
        self.state = (*self.state[:7], trims, leaves + 1, splits, calls + len(x), *self.state[11:])

class KDTree(BinaryTree64): ...
''',
    "xarray/__init__.py": '''
import uuid

class SerializableLock:
    def __init__(self):
        self.token = str(uuid.uuid4())

    def __getstate__(self):
        return self.token

class CachingFileManager:
    """As in xarray: what it has open is named by a random UUID."""

    def __init__(self, path):
        self.path, self.lock, self.token = path, SerializableLock(), str(uuid.uuid4())

    def __getstate__(self):
        return self.path, "r", self.lock, self.token

class Variable:
    def __init__(self, path):
        self._attrs, self._data = None, CachingFileManager(path)

    def __call__(self, x):
        self._attrs = self._attrs or {}
''',
    "polars/__init__.py": '''
class LazyFrame:
    """As in polars: a plan, which says from where it reads."""

    def __init__(self, plan):
        self.plan = plan

    def __getstate__(self):
        return self.plan

class Expr(LazyFrame):
    """As in polars: it holds what it calls as a pickle."""

class DataFrame(LazyFrame):
    """As in polars: its state holds all text in it."""
''',
    "spacy/__init__.py": '''
import pickle

class StringStore:
    """As in spaCy: each word that is met is kept, by its hash."""

    def __init__(self, words=()):
        self.words = list(words)

    def add(self, word):
        self.words.append(word)

    def __iter__(self):
        return iter(self.words)

    def __reduce__(self):
        return StringStore, (self.words,)

class Vectors:
    def __init__(self, strings, rows):
        self.strings, self.rows = strings, rows

    def to_bytes(self, exclude=()):
        return repr([self.rows, *([] if "strings" in exclude else self.strings)]).encode()

    def __reduce__(self):
        return Vectors.__new__, (Vectors, self.to_bytes())

_IN_C = {}

class Vocab:
    """It keeps what it is made of in C."""

    __slots__ = ()

    def __init__(self, rows, stops=("and", "or", "the", "a")):
        strings = StringStore()
        _IN_C[id(self)] = {"strings": strings, "stops": set(stops), "vectors": Vectors(strings, rows)}

    strings = property(lambda self: _IN_C[id(self)]["strings"])
    stops = property(lambda self: _IN_C[id(self)]["stops"])
    vectors = property(lambda self: _IN_C[id(self)]["vectors"])

    def __reduce__(self):
        return Vocab.__new__, (Vocab, self.strings, self.vectors, pickle.dumps(self.stops))

    def __call__(self, text):
        for word in text.split():
            self.strings.add(word)
''',
}
CASES = {
    "a tokenizer": ("import transformers\nT = transformers.Fast({0!r})\ndef f(x): return T(x, 4)\n", "left", "right"),
    "one that gives its state": (
        "import transformers\nT = transformers.Stateful({0!r})\ndef f(x): return T(x, 4)\n", "left", "right",
    ),
    "a transform": ("import albumentations\nT = albumentations.Resize({0!r})\ndef f(x): return T(x)\n", 1, 2),
    "a file that is open": (
        "import xarray\nT = xarray.Variable({0!r})\ndef f(x): return T(x)\n", "a.nc", "b.nc"
    ),
    "a tree": ("import sklearn\nT = sklearn.KDTree({0!r})\ndef f(x): return T.query(x)\n", 1, 2),
    "a vocabulary": ("import spacy\nT = spacy.Vocab({0!r})\ndef f(x): return T(x)\n", 1, 2),
    "what is pickled in it": ("import spacy\nT = spacy.Vocab(1, {0!r})\ndef f(x): return T(x)\n", "ab", "cd"),
}  # fmt: skip
BACKEND = (
    "import transformers\nT = transformers.Fast('left')\ndef f(x): return T.backend_tokenizer.encode(x).ids\n"
)


@pytest.fixture(autouse=True)
def libraries(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    site = project.folder / "site-packages"
    for name, text in LIBRARIES.items():
        top = name.partition("/")[0]
        project.put(f"site-packages/{name}", text)
        project.put(f"site-packages/{top}-1.dist-info/RECORD", f"{name},sha256=a,1\n")
        metadata = f"Metadata-Version: 2.1\nName: {top}\nVersion: 1\n"
        project.put(f"site-packages/{top}-1.dist-info/METADATA", metadata)
    monkeypatch.syspath_prepend(str(site))
    yield site
    project.forget()


@pytest.mark.parametrize("code", ["script", "function"])
@pytest.mark.parametrize("case", CASES)
def test_a_call_changes_nothing_and_a_setting_does(project: Project, case: str, code: Any) -> None:
    text, one, other = CASES[case]
    project.write(prep=text.format(one))
    module = project.load()
    made = recipe(module.f, code=code)
    module.f("a b")
    assert recipe(module.f, code=code).digest == made.digest and not drift(made)
    project.write(prep=text.format(other))
    assert recipe(project.load().f, code=code).digest != made.digest


@pytest.mark.parametrize("case", CASES)
def test_what_is_made_anew_has_the_same_recipe(project: Project, case: str) -> None:
    text, one, _ = CASES[case]
    project.write(prep=text.format(one))
    assert recipe(project.load().f).digest == recipe(project.load().f).digest


def test_attributes_that_are_set_count(project: Project) -> None:
    project.write(prep=CASES["a file that is open"][0].format("a.nc"))
    module = project.load()
    before = recipe(module.f).digest
    module.T._attrs = {"units": "m"}
    assert recipe(module.f).digest != before


def test_a_backend_that_the_project_uses_counts_with_modes(project: Project) -> None:
    project.write(prep=BACKEND)
    module = project.load()
    digests = {recipe(module.f).digest}
    for length in (2, 3):
        module.T.backend_tokenizer.enable_truncation(length)
        digests.add(recipe(module.f).digest)
    module.T.backend_tokenizer.enable_padding(length=9)
    digests.add(recipe(module.f).digest)
    assert len(digests) == 4


def test_what_else_a_backend_is_set_to_counts(project: Project) -> None:
    project.write(prep=CASES["a tokenizer"][0].format("left"))
    module = project.load()
    before = recipe(module.f).digest
    module.T._tokenizer.add_tokens(["c"])
    assert recipe(module.f).digest != before


@pytest.mark.parametrize("held", ["spacy.Vocab(1)", "spacy.Vocab(1).vectors"])
def test_words_that_were_met_count_where_the_project_uses_them(project: Project, held: str) -> None:
    project.write(prep=f"import spacy\nT = {held}\ndef f(x): return x in T.strings\n")
    module = project.load()
    before = recipe(module.f).digest
    module.T.strings.add("met")
    assert recipe(module.f).digest != before


def test_what_is_pickled_in_an_object_counts_by_what_it_is(project: Project) -> None:
    """The bytes of a set are others in each process."""
    digests = set()
    for stops in ([0, 8], [8, 0]):
        project.write(prep=f"import spacy\nT = spacy.Vocab(1, {stops})\ndef f(x): return T(x)\n")
        module = project.load()
        assert list(module.T.stops) == stops
        digests.add(recipe(module.f, code="function").digest)
    assert len(digests) == 1


def test_a_plan_that_reads_files_when_it_is_collected_is_refused(project: Project) -> None:
    text = "import polars\nT = polars.LazyFrame({!r})\ndef f(x): return T\n"
    project.write(prep=text.format(b"\x81\xa2DataFrameScan"))
    assert recipe(project.load().f).digest
    project.write(prep=text.format(b"\x81\xa4Scan\x83\xa7sources"))
    with pytest.raises(UnkeyableError, match="it reads files when it is collected"):
        recipe(project.load().f)


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("Expr", b"\x16\x01\xfbU\x06PLPYFN\x94\xc0\x80\x05"),
        ("LazyFrame", b"\x81\xa8function\xdc\x02PLPYFN\xcc\x94\xcc\xc0"),
        ("LazyFrame", b"\x81\xacOpaquePython\x86\xa8function"),
    ],
)
def test_an_expression_that_calls_functions_of_python_is_refused(
    project: Project, kind: str, state: bytes
) -> None:
    """Of a module's function its pickle says only the name: an edit of it would be a stale sample."""
    text = "import polars\nE = polars.{}({!r})\ndef f(x): return E\n"
    project.write(prep=text.format("DataFrame", state))
    assert recipe(project.load().f).digest
    project.write(prep=text.format(kind, state))
    with pytest.raises(UnkeyableError, match="it calls functions of Python"):
        recipe(project.load().f)
