"""What an object of a library made of its other attributes is no input; that they were changed since, is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from prepcache.keys.drift import drift
from prepcache.keys.recipes import recipe
from support.projects import Project, project_fixture  # noqa: F401

LIBRARIES = {
    "jinja2": '''
class Environment:
    """As in jinja2: it keeps the templates that it compiled, as functions of files that are no Python."""

    def __init__(self, folder):
        self.folder, self.cache = folder, {}

    def render(self, name):
        if name not in self.cache:
            with open(f"{self.folder}/{name}") as file:
                text = file.read()
            space = {}
            exec(compile(f"def root():\\n    return {text!r}", f"{self.folder}/{name}", "exec"), space)
            self.cache[name] = space["root"]
        return self.cache[name]()
''',
    "nltk": """
import re

class RegexpTokenizer:
    def __init__(self, pattern):
        self._pattern, self._regexp = pattern, None

    def tokenize(self, text):
        self._regexp = self._regexp or re.compile(self._pattern)
        return self._regexp.findall(text)
""",
    "nibabel": '''
import numpy as np

class DataobjImage:
    """As in nibabel: it keeps what it read of its file, and gives that away to be written to."""

    def __init__(self, numbers):
        self._dataobj, self._fdata_cache = numbers, None

    def get_fdata(self):
        if self._fdata_cache is None:
            self._fdata_cache = np.asanyarray(self._dataobj, dtype=np.float64)
        return self._fdata_cache

class Image(DataobjImage): ...
''',
}
CASES = {
    "templates": "import jinja2\nT = jinja2.Environment({!r})\ndef f(x): return T.render('a.txt')\n",
    "a pattern": "import nltk\nT = nltk.RegexpTokenizer({!r})\ndef f(x): return T.tokenize('a b')\n",
    "an image": "import nibabel\nT = nibabel.Image([{!r}])\ndef f(x): return T.get_fdata()\n",
}
MADE_OF = {"templates": "folder", "a pattern": "_pattern", "an image": "_dataobj"}
KEPT = {"templates": "cache", "a pattern": "_regexp", "an image": "_fdata_cache"}


@pytest.fixture(autouse=True)
def libraries(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, text in LIBRARIES.items():
        monkeypatch.delitem(sys.modules, name, raising=False)  # torch may have loaded the true one
        project.put(f"site-packages/{name}.py", text)
        project.put(f"site-packages/{name}-1.dist-info/RECORD", f"{name}.py,sha256=a,1\n")
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n"
        project.put(f"site-packages/{name}-1.dist-info/METADATA", metadata)
    for folder in ("one", "two"):
        project.put(f"{folder}/a.txt", f"{{{{ {folder} }}}}")
    monkeypatch.syspath_prepend(str(project.folder / "site-packages"))
    yield
    project.forget()


def made(project: Project, case: str) -> tuple[Any, Any]:
    one = str(project.folder / "one") if case == "templates" else 1 if case == "an image" else "a"
    two = str(project.folder / "two") if case == "templates" else [2] if case == "an image" else "b"
    project.write(prep=CASES[case].format(one))
    return project.load(), two


@pytest.mark.parametrize("code", ["script", "function"])
@pytest.mark.parametrize("case", CASES)
def test_what_was_made_does_not_count(project: Project, case: str, code: Any) -> None:
    module, _ = made(project, case)
    before = recipe(module.f, code=code)
    module.f(1)
    assert recipe(module.f, code=code).digest == before.digest and not drift(before)


@pytest.mark.parametrize("case", CASES)
def test_what_was_made_before_the_rest_was_changed_counts(project: Project, case: str) -> None:
    """A process that begins with what it is changed to makes another thing."""
    module, other = made(project, case)
    setattr(module.T, MADE_OF[case], other)
    fresh = recipe(module.f).digest

    module, other = made(project, case)
    before = recipe(module.f).digest
    module.f(1)
    setattr(module.T, MADE_OF[case], other)
    digests = [recipe(module.f).digest for _ in range(2)]
    assert len({fresh, before, *digests}) == 3, "another one, which stays as it is"
    setattr(module.T, KEPT[case], {} if case == "templates" else None)
    assert recipe(module.f).digest == fresh, "nothing is kept any more"


def test_an_array_that_was_written_to_counts(project: Project) -> None:
    module, _ = made(project, "an image")
    before = recipe(module.f).digest
    module.f(1)[:] = 7
    assert recipe(module.f).digest != before
    module.f(1)[:] = 1
    assert recipe(module.f).digest == before
    module.T._dataobj = ["what cannot be read"]
    assert recipe(module.f).digest != before


def test_a_templates_files_count_for_later_data_sets(project: Project) -> None:
    module, _ = made(project, "templates")
    reached = recipe(module.f).remembering
    assert {name for _, name in reached} == {"f"}


def test_marks_of_torch_compile_in_tensors_do_not_count() -> None:
    for make in (lambda: torch.ones(3), lambda: torch.nn.Parameter(torch.ones(3))):
        held = make()

        def f(x: Any, held: Any = held) -> Any:
            return held * x

        before = recipe(f, code="function").digest
        held._dynamo_static_input_type = "unguarded"
        assert recipe(f, code="function").digest == before
        held.scale = np.float32(2)
        assert recipe(f, code="function").digest != before
