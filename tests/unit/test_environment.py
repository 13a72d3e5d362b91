"""The environment part: distributions by RECORD, with their requirements, wherever the path holds them."""

import json
import sys
from pathlib import Path

import pytest

from prepcache.fill.recipe_guard import RecipeGuard
from prepcache.keys import environment
from prepcache.keys.environment import Environment
from support.programs import python
from support.projects import Project, drift, project_fixture  # noqa: F401


def install(
    folder: Path,
    name: str,
    version: str = "1",
    requires: tuple[str, ...] = (),
    record: str | None = None,
    **extra: str,
) -> Path:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    needs = "".join(f"Requires-Dist: {r}\n" for r in requires)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}\nbody")
    rows = record or f"{name}/__init__.py,sha256=abc,10\n"
    (info / "RECORD").write_text(rows)
    for file, text in extra.items():
        (info / file).write_text(text)
    return info


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "site-packages"


def counted(site: Path, top: str = "one") -> dict[str, str]:
    return Environment([str(site)]).counted([top])


def test_requirements_of_extras_do_not_count(site):
    install(site, "one", requires=('two; extra == "all"',))
    install(site, "two")
    assert set(counted(site)) == {"one"}


def test_what_an_installer_writes_for_itself_does_not_count(site):
    rows = "one/__init__.py,sha256=abc,10\n"
    install(site, "one", record=rows)
    before = counted(site)
    more = (
        "one/__pycache__/__init__.cpython-311.pyc,,\n../../../bin/one,sha256=path,9\n"
        "one-1.dist-info/INSTALLER,sha256=pip,4\none-1.dist-info/RECORD,,\none-1.dist-info/direct_url.json,sha256=q,1\n"
    )
    install(site, "one", record=more + rows)
    assert counted(site) == before


def test_tools_of_packaging_count_only_where_they_are_imported(site):
    for name in ("setuptools", "packaging", "types-one", "one-stubs"):
        install(site, name)
    install(site, "one", requires=("setuptools", "packaging", "types-one", "one-stubs", "two"))
    install(site, "two", requires=("pip", "wheel"))
    assert set(counted(site)) == {"one", "two"}
    assert set(Environment([str(site)]).counted(["one", "setuptools"])) == {"one", "two", "setuptools"}


def test_a_memo_that_is_damaged_or_not_ones_own_is_not_used(site, tmp_path):
    install(site, "one")
    before = counted(site)
    (memo,) = (tmp_path / "cache" / "prepcache").iterdir()
    for mode, is_used in ((0o666, False), (0o600, True)):
        memo.write_text(memo.read_text().replace('["1",', '["666",'))
        memo.chmod(mode)
        environment._memoised.cache_clear()
        assert (counted(site) != before) is is_used
    memo.write_text('{"broken": ')
    environment._memoised.cache_clear()
    assert counted(site) == before


def test_the_first_on_the_path_wins(site, tmp_path):
    other = tmp_path / "other" / "site-packages"
    install(site, "one", version="1")
    install(other, "one", version="2")
    assert Environment([str(other), str(site)]).counted(["one"])["one"].startswith("2 ")


def test_what_is_editable_or_has_no_record_counts_by_files(site, tmp_path):
    source = tmp_path / "source"
    url = json.dumps({"url": source.as_uri(), "dir_info": {"editable": True}})
    install(site, "one", requires=("two",), **{"top_level.txt": "one\n"})
    (site / "one-1.dist-info" / "RECORD").unlink()
    install(site, "two", record="_two.pth,sha256=a,1\n", **{"direct_url.json": url})
    found = []
    for name, file in (("one", site / "one" / "a.py"), ("two", source / "two" / "a.py")):
        file.parent.mkdir(parents=True)
        for text in ("a = 1", "a = 2"):
            file.write_text(text)
            found.append(counted(site)[name])
        file.rename(file.with_name("b.py"))
        found.append(counted(site)[name])
    assert len({*found}) == len(found) == 6


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_library_installed_before_it_is_loaded_is_drift(project, site, monkeypatch, is_loaded):
    install(site, "late", record="late.py,sha256=a,1\n")
    (site / "late.py").write_text("V = 1")
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    monkeypatch.setitem(sys.modules, "late", sys)
    del sys.modules["late"]  # so that what is loaded here is not there for the next test
    project.write(prep="def f(x):\n    import late\n    return late.V")
    made = project.recipe()
    guard = RecipeGuard(made)
    if is_loaded:
        made.preprocess(1)  # type: ignore[misc]
    assert drift(made) == {}
    install(site, "late", version="2", record="late.py,sha256=b,1\n")
    (site / "late-1.dist-info" / "METADATA").unlink()
    assert drift(made) == ({"late": False} if is_loaded else {})
    made.preprocess(1)  # type: ignore[misc]
    assert drift(made) == {"late": False}
    guard.note_call()
    assert guard.check() == ["late"], "no function's own doing"


JOB = """
import os, pathlib, sys
sys.path[:0] = {search!r}
info = pathlib.Path({info!r})
{steps}
from prepcache.errors import UnkeyableError
from prepcache.keys import environment
from prepcache.keys.environment import Environment
try:
    print(Environment().counted(["one"])["one"])
except UnkeyableError as error:
    print("refused:", error)
"""
INSTALL = """
pathlib.Path(info.parent, "one", "inner.py").write_text({!r})
(info / "x").mkdir()
"""
"""As an installer does, with a file and a folder of metadata."""
INNER = "LIMIT = 1\ndef f(): return LIMIT\n"


def in_a_job(site: Path, steps: str) -> str:
    """What a process of its own counts after some steps."""
    (site / "one").mkdir(parents=True, exist_ok=True)
    (site / "one" / "__init__.py").write_text("from one import inner")
    (site / "one" / "inner.py").write_text(INNER)
    info = install(site, "one", record="one/__init__.py,sha256=a,1\none/inner.py,sha256=a,1\n")
    job = JOB.format(search=[str(site)], info=str(info), steps=steps)
    done = python("-c", job)
    if (info / "x").exists():
        (info / "x").rmdir()
    return done.stdout.strip()


def test_a_library_installed_before_loading_counts_by_its_record(site):
    """Also in a notebook that installs it and then loads it."""
    plain = in_a_job(site, "")
    assert plain == counted(site)["one"]
    assert in_a_job(site, "import one") == plain
    text = "import sys\nENDS = 1 if sys.maxsize else 2\nLATER = None\nPAIR = (1, 'a')\n" + INNER
    assert in_a_job(site, f"{INSTALL.format(text)}\nimport one\none.inner.LATER = one") == plain
    assert in_a_job(site, f"import one\n{INSTALL.format(INNER)}") == plain, "the same again"


@pytest.mark.parametrize("text", ["LIMIT = 1\ndef f(): return 2", "LIMIT = 2\ndef f(): return LIMIT"])
def test_what_is_installed_after_it_was_loaded_is_refused(site, tmp_path, text):
    steps = f"import one\n{INSTALL.format(text)}"
    refusal = "refused: one was reinstalled after this process had loaded it"
    for folder in (site, tmp_path / "vendored"):  # `pip install --target`
        assert in_a_job(folder, steps).startswith(refusal)
    fork = "if os.fork(): sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))"
    assert in_a_job(site, f"{steps}\n{fork}").startswith(refusal), "a child has what its parent loaded"
