"""What a call leaves in an object of a library is no input of the next data set; what it is set to is."""
# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prepcache.keys.recipes import drift, recipe
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
}
CASES = {
    "a tokenizer": ("import transformers\nT = transformers.Fast({0!r})\ndef f(x): return T(x, 4)\n", "left", "right"),
    "one that gives its state": (
        "import transformers\nT = transformers.Stateful({0!r})\ndef f(x): return T(x, 4)\n", "left", "right",
    ),
    "a transform": ("import albumentations\nT = albumentations.Resize({0!r})\ndef f(x): return T(x)\n", 1, 2),
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


def test_a_backend_that_the_project_uses_itself_counts_with_its_modes(project: Project) -> None:
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
