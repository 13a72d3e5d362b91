"""Settings of libraries that a function imports itself: what a job set counts."""

from __future__ import annotations

import math
import string

import pytest
from PIL import ImageFile

from prepcache.keys.recipes import recipe
from support.projects import Project, project_fixture  # noqa: F401

BOTH = pytest.mark.parametrize("code", ["function", "script"])
READS = {
    "from a package": "from PIL import ImageFile\n    return ImageFile.MAXBLOCK",
    "under another name": "import PIL.ImageFile as F\n    return F.MAXBLOCK",
    "by its full name": "import PIL.ImageFile\n    return PIL.ImageFile.MAXBLOCK",
    "by itself": "from PIL.ImageFile import MAXBLOCK\n    return MAXBLOCK",
    "in a function of the function's": "from PIL import ImageFile\n    return lambda: ImageFile.MAXBLOCK",
    "by one of two imports": (
        "if x:\n        import PIL.ImageFile as m\n    else:\n        import math as m\n    return m.MAXBLOCK"
    ),
}
HELPERS = {
    "at the top": "from PIL import ImageFile\ndef g(x): return ImageFile.MAXBLOCK\n",
    "in a function": "def g(x):\n    from PIL import ImageFile\n    return ImageFile.MAXBLOCK\n",
    "by itself": "from PIL.ImageFile import MAXBLOCK\ndef g(x): return MAXBLOCK\n",
}


@BOTH
@pytest.mark.parametrize("name", READS)
def test_a_setting_counts_that_the_function_reads(
    project: Project, monkeypatch: pytest.MonkeyPatch, name: str, code: str
) -> None:
    project.write(prep=f"def f(x):\n    {READS[name]}\n")
    module = project.load()
    before = recipe(module.f, code=code)
    monkeypatch.setattr(ImageFile, "MAXBLOCK", 5)
    assert recipe(module.f, code=code).digest != before.digest
    assert before.parts["code"]["values"].keys() == {"preprocess"}, (
        "what a library's text says does not count"
    )


@BOTH
@pytest.mark.parametrize("name", HELPERS)
def test_a_setting_counts_that_a_helper_reads(
    project: Project, monkeypatch: pytest.MonkeyPatch, name: str, code: str
) -> None:
    project.write(prep="def f(x):\n    from helper import g\n    return g(x)\n", helper=HELPERS[name])
    module = project.load()
    before = recipe(module.f, code=code).digest
    monkeypatch.setattr(ImageFile, "MAXBLOCK", 5)
    changed = recipe(module.f, code=code).digest
    assert changed != before
    module.f(1)
    assert recipe(module.f, code=code).digest == changed, "whether the helper is loaded or not"
    monkeypatch.undo()
    assert recipe(project.load().f, code=code).digest == before


def test_what_a_library_computes_counts_by_value(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write(prep="def f(x):\n    import string\n    return string.ascii_letters\n")
    before = project.digest()
    monkeypatch.setattr(string, "ascii_letters", "abc")
    assert project.digest() != before


def test_what_is_put_into_a_library_counts(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write(prep="def f(x):\n    import string\n    return string.SCALE\n")
    before = project.digest()
    monkeypatch.setattr(string, "SCALE", 5, raising=False)
    assert project.digest() != before


def test_constants_of_c_do_not_count(project: Project) -> None:
    project.write(prep="def f(x):\n    import math, numpy as np\n    return math.pi, np.pi, np.newaxis\n")
    assert project.recipe().parts["code"]["values"].keys() == {"preprocess"}


def test_a_constant_of_c_that_was_set_in_the_project_counts(project: Project) -> None:
    project.write(
        prep="def f(x):\n    from helper import g\n    return g(x)\n",
        helper="from math import pi\ndef g(x): return x * pi\n",
    )
    module = project.load()
    before = recipe(module.f).digest
    module.f(1)
    assert recipe(module.f).digest == before
    module.f.__globals__["__builtins__"]["__import__"]("helper").pi = 3
    assert recipe(module.f).digest != before
    assert math.pi != 3
