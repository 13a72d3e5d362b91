"""What a job has put in the place of a module: an object that imports give."""

import sys
import types
from typing import Any
from unittest import mock

import pytest

from prepcache.errors import UnkeyableError
from prepcache.keys.recipes import recipe
from support.projects import Project, project_fixture  # noqa: F401

KINDS = '''
class Kept:
    """Its attributes lie in the instance."""
    def __init__(self): self.k = 2

class Answering(Kept):
    """As lazy settings do, it has an attribute of every name."""
    def __getattr__(self, name): return 3
'''
_kinds: dict[str, Any] = {"__name__": "kinds"}
exec(KINDS, _kinds)  # of no file: a class of this file's would reach all that tests have loaded
Kept, Answering = _kinds["Kept"], _kinds["Answering"]


READS = {
    "imported": "import settings\ndef f(x): return settings.k",
    "imported within": "def f(x):\n    import settings\n    return settings.k",
    "by its name": "import sys\ndef f(x): return sys.modules['settings'].k",
    "by a module": "def f(x):\n    from helper import g\n    return g()",
    "in a package, within": "def f(x):\n    import pack.settings\n    return pack.settings.k",
}


@pytest.fixture(name="placed")
def _placed(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    project.write(helper="import settings\ndef g(): return settings.k", pack____init__="")
    for name in ("settings", "pack.settings"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    return project


def _put(value: Any) -> None:
    sys.modules["settings"] = sys.modules["pack.settings"] = value


@pytest.mark.parametrize("kind", [Kept, Answering])
@pytest.mark.parametrize("read", READS)
def test_an_object_in_the_place_of_a_module_counts_by_value(placed, read, kind):
    placed.write(prep=READS[read])
    found = kind()
    _put(found)
    function = placed.load().f
    before = recipe(function).digest
    assert recipe(function).digest == before
    found.k = 3
    assert recipe(function).digest != before
    _put(kind())
    assert placed.digest() == before


def test_a_mock_in_the_place_of_a_module_has_no_key(placed):
    """As in jobs that do without a library."""
    placed.write(prep=READS["imported within"])
    sys.modules["settings"] = mock.MagicMock()
    with pytest.raises(UnkeyableError, match=r"sys\.modules\.settings.* has no stable bytes"):
        placed.recipe()
    assert placed.recipe(untracked=["settings"]).digest
