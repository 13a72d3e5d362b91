"""Observed inputs by where they lie: beside the code or the data, or in the working directory."""

from pathlib import Path

import pytest

from prepcache.keys.observation.inputs import Roots, still_true
from support.observing import Watched
from support.projects import Project, project_fixture  # noqa: F401

BESIDE_THE_CODE = {
    "read": "def f(x): return (HERE.parent / 'assets' / 'v.txt').read_text()",
    "listed": "def f(x): return len(list((HERE.parent / 'assets').iterdir()))",
}


def source_folder(place: Path) -> Project:
    """`place/src`, with `place/assets` beside it."""
    made = Project(place / "src")
    (made.folder / "pyproject.toml").unlink()
    (place / "assets").mkdir()
    (place / "assets" / "v.txt").write_text("one")
    return made


@pytest.mark.parametrize("source", BESIDE_THE_CODE.values(), ids=BESIDE_THE_CODE)
def test_a_copied_project_is_checked_against_its_own_files(tmp_path, source):
    """A copy of a folder without a marker, whose code is imported from a folder in it."""
    first, second = (source_folder(tmp_path / place) for place in ("one", "two"))
    with first.on_path():
        taken = Watched(first, source).taken
    beside = [row["name"] for row in taken if row["name"].startswith("project:")]
    assert [name.removesuffix("/v.txt") for name in beside] == ["project:../assets"]
    with second.on_path():
        roots = Roots.of(Watched(second, source).recipe)
    assert still_true(taken, roots=roots) is None
    (tmp_path / "two" / "assets" / "v.txt").rename(tmp_path / "two" / "assets" / "w.txt")
    found = still_true(taken, roots=roots)
    assert found is not None and found[0] == beside[0]


def test_labels_beside_an_image_root_follow_the_root(project, tmp_path):
    for place in ("one", "two"):
        for folder, name in (("images", "a.png"), ("labels", "a.txt")):
            (tmp_path / place / folder / "train").mkdir(parents=True)
            (tmp_path / place / folder / "train" / name).write_text(folder)
    source = "def f(x): return (x.parents[2] / 'labels' / x.parent.name / 'a.txt').read_text()"
    images = tmp_path / "one" / "images" / "train"
    watched = Watched(project, source, images / "a.png", images)
    assert watched.names == [str(tmp_path / "one/labels/train/a.txt"), "items:../../labels/train/a.txt"]
    other = tmp_path / "two" / "images" / "train"
    assert watched.changed() is None and watched.changed(other) is None
    (tmp_path / "two" / "labels" / "train" / "a.txt").write_text("edited")
    assert watched.changed(other) == "items:../../labels/train/a.txt"


ASKS_FOR_IT = {
    "pathlib.Path.cwd() / 'w'": True,
    "os.getcwd() + '/w'": True,
    "pathlib.Path('w').absolute()": True,
    "os.path.abspath('w')": True,
    "os.path.realpath('w')": True,
    "x.absolute().parent / 'w'": True,
    "x.resolve().parent / 'w'": True,
    "pathlib.Path(__file__).absolute().parent / 'job' / 'w'": False,
    "pathlib.Path(__file__).resolve().parent / 'job' / 'w'": False,
    "ROOT / 'job' / 'w'": False,
    "HERE / 'job' / 'w'": False,
}


@pytest.mark.parametrize("path", ASKS_FOR_IT)
def test_code_that_asks_for_the_working_directory_uses_it(project, monkeypatch, path):
    """Within the checkout too, and where it makes the path of an item absolute."""
    for place in ("job", "elsewhere"):
        project.put(f"{place}/v", "one image")
        project.put(f"{place}/w", f"the label in {place}")
    monkeypatch.chdir(project.folder / "job")
    reads = f"def f(x):\n    with open({path}) as file: return file.read()"
    watched = Watched(project, f"ROOT = pathlib.Path(__file__).resolve().parent\n{reads}", Path("v"))
    asks = ASKS_FOR_IT[path]
    assert ("cwd:w" in watched.names) == asks and "project:job/w" in watched.names
    assert watched.changed() is None
    monkeypatch.chdir(project.folder / "elsewhere")
    assert watched.changed() == ("cwd:w" if asks else None)


def test_a_root_itself_that_is_listed_is_that_of_the_day(project, tmp_path, monkeypatch):
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "a.img").write_text("x")
    item = tmp_path / "one" / "a.img"
    watched = Watched(project, "def f(x): return len(os.listdir(x.parent))", item, item.parent)
    assert watched.names == ["items:."] and watched.changed(tmp_path / "two") is None
    (tmp_path / "two" / "b.json").touch()
    assert watched.changed(tmp_path / "two") == "items:."
    monkeypatch.chdir(tmp_path / "one")
    watched = Watched(project, "def f(x): return len(os.listdir(os.getcwd()))")
    assert "cwd:." in watched.names and watched.changed() is None
    monkeypatch.chdir(tmp_path / "two")
    assert watched.changed() == "cwd:."


_THERE_AND_THERE = (
    "def f(x):\n    made = []\n    for place in x:\n        os.chdir(place)\n"
    "        made += [pathlib.Path('v.txt').read_text(), os.listdir('.')]\n    return made"
)


@pytest.mark.parametrize("edited", ["one/v.txt", "two/v.txt", "one/w.txt", "two/w.txt"])
@pytest.mark.parametrize("text", ["alike", None])
def test_a_name_after_another_chdir_is_another_file(project, tmp_path, monkeypatch, edited, text):
    """A function that goes from folder to folder reads a file of the same name in each, and lists each."""
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "v.txt").write_text(text or place)
    monkeypatch.chdir(tmp_path / "one")
    watched = Watched(project, _THERE_AND_THERE, [".", "../two"])
    monkeypatch.chdir(tmp_path / "one")
    assert text is None or watched.changed() is None
    (tmp_path / edited).write_text("two" if edited == "one/v.txt" else "edited")
    assert watched.changed() is not None


def test_an_absolute_literal_in_the_code_stays_absolute(project):
    path = project.put("v.txt", "one")
    assert Watched(project, f"def f(x): return pathlib.Path({str(path)!r}).read_text()").names == [str(path)]


def test_a_path_that_a_global_holds_is_relative_to_the_checkout(project):
    """It counts so in the key, and a copy of the project has the same."""
    project.put("data/v.txt", "one")
    source = "HOME = str(HERE / 'data')\ndef f(x): return pathlib.Path(HOME + '/v.txt').read_text()"
    assert Watched(project, source).names == ["project:data/v.txt"]
