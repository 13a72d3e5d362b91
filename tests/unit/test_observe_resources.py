"""What a function finds or reads through the import system: specs, data of packages, sources as data."""

from __future__ import annotations

import importlib

import pytest

from support.observing import Watched
from support.projects import Project, project_fixture  # noqa: F401

NAME = "str('pack') + '.' + 'part'"
READS = {
    "a spec": ("import importlib.util", f"importlib.util.find_spec({NAME})"),
    "a relative spec": ("import importlib.util as u", "u.find_spec(str('.') + 'part', 'pack')"),
    "a loader": ("import pkgutil", f"pkgutil.resolve_name({NAME})"),
    "data": ("import pkgutil", "pkgutil.get_data('pack', str('part') + '.py')"),
    "source": ("import pack", "pack.__spec__.loader.get_data(str(HERE / 'pack' / 'part.py'))"),
    "source by name": (
        "import importlib.util",
        f"importlib.util.find_spec({NAME}).loader.get_source({NAME})",
    ),
    "resource": ("from importlib import resources as r", "r.files('pack').joinpath('part.py').read_text()"),
}


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("what", READS)
def test_what_the_import_system_reads_is_an_input(project: Project, what: str, is_loaded: bool) -> None:
    imports, call = READS[what]
    project.write(pack____init__="", pack__part="K = 1")
    load = "importlib.import_module('pack.part')" if is_loaded else ""
    watched = Watched(
        project, f"import importlib\n{imports}\n{load}\ndef f(x): return bool({call})", code="function"
    )
    assert watched.failure == "" and watched.changed() is None
    project.write(pack__part="K = 2")
    assert watched.changed() == "project:pack/part.py"


def test_a_module_that_was_looked_for_and_came_is_a_change(project: Project) -> None:
    watched = Watched(
        project, "import importlib.util\ndef f(x): return importlib.util.find_spec(str('lat') + 'er')"
    )
    assert watched.changed() is None
    project.write(later="")
    assert watched.changed() == "project:later.py"


@pytest.mark.parametrize("code", ["function", "script"])
def test_a_module_looked_for_by_a_literal_counts(project: Project, code: str) -> None:
    project.write(prep="from importlib.util import find_spec\ndef f(x): return find_spec('later') is None")
    digests = [project.digest(code=code)]
    for text in ("K = 1", "K = 2"):
        project.write(later=text)
        importlib.invalidate_caches()
        digests.append(project.digest(code=code))
    assert len({*digests}) == 3


def test_data_beside_a_package_is_an_input(project: Project) -> None:
    project.write(pack____init__="")
    data = project.put("pack/words.txt", "one")
    source = """
    import pkgutil
    from importlib import resources
    def f(x):
        return pkgutil.get_data("pack", "words.txt"), [p.name for p in resources.files("pack").iterdir()]
    """
    watched = Watched(project, "\n".join(line[4:] for line in source.splitlines()))
    assert watched.changed() is None
    data.write_text("two")
    assert watched.changed() == "project:pack/words.txt"
    data.write_text("one")
    project.put("pack/more.txt", "")
    assert watched.changed() == "project:pack"
