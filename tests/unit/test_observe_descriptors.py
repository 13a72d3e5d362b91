"""What is opened, listed or made relative to a folder that is open: by `dir_fd=`, and by a descriptor."""

from __future__ import annotations

from pathlib import Path

import pytest

from prepcache.keys.observation.observer import Observer
from support.observing import Watched
from support.projects import Project, project_fixture  # noqa: F401

OPENED = (
    "def f(x):\n    folder = os.open(HERE / 'data', os.O_RDONLY)\n"
    "    try:\n        {}\n    finally:\n        os.close(folder)"
)
READS = {
    "os.open": "fd = os.open('v.txt', os.O_RDONLY, dir_fd=folder)\n        os.close(fd)",
    "opener": (
        "with open('v.txt', opener=lambda name, flags: os.open(name, flags, dir_fd=folder)) as file:\n"
        "            file.read()"
    ),
}


@pytest.mark.parametrize("how", READS)
def test_a_file_opened_in_an_open_folder_counts(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    path = project.put("data/v.txt", "one")
    monkeypatch.chdir(tmp_path)
    watched = Watched(project, OPENED.format(READS[how]))
    assert watched.changed() is None
    path.write_text("two")
    assert watched.changed() == "project:data/v.txt"


@pytest.mark.parametrize("how", ["os.listdir(folder)", "os.scandir(folder).close()"])
def test_a_folder_listed_by_its_descriptor_counts(project: Project, how: str) -> None:
    project.put("data/v.txt", "one")
    watched = Watched(project, OPENED.format(how))
    assert watched.names == ["project:data", "project:data/"] and watched.changed() is None
    project.put("data/w.txt", "two")
    assert watched.changed() == "project:data"


@pytest.mark.parametrize(
    "made",
    [
        "os.rename(made, 'out', dst_dir_fd=folder)",
        "os.link(made, 'out', dst_dir_fd=folder)",
        "os.symlink(made, 'out', dir_fd=folder)",
    ],
)
def test_a_name_made_in_an_open_folder_is_no_other(
    project: Project, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    """What has the same name in the working directory is still an input."""
    project.put("data/v.txt", "one")
    own = project.put("job/out", "one")
    monkeypatch.chdir(project.folder / "job")
    writes = f"made = HERE / 'made'\n        made.write_text('two')\n        {made}"
    watched = Watched(project, OPENED.format(f"{writes}\n        with open('out') as file: file.read()"))
    own.write_text("two")
    assert watched.changed() == "cwd:out"


def test_a_folder_made_in_an_open_folder_is_no_other(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.put("data/v.txt", "one")
    (project.folder / "job").mkdir()
    monkeypatch.chdir(project.folder / "job")
    reads = "try:\n            open('out/v.txt')\n        except FileNotFoundError: pass"
    watched = Watched(project, OPENED.format(f"os.mkdir('out', dir_fd=folder)\n        {reads}"))
    assert watched.changed() is None
    project.put("job/out/v.txt", "two")
    assert watched.changed() == "cwd:out/v.txt"


def test_a_file_written_in_an_open_folder_is_not_stored(project: Project) -> None:
    (project.folder / "data").mkdir()
    write = "os.close(os.open('out', os.O_WRONLY | os.O_CREAT, dir_fd=folder))"
    project.write(prep=f"import os, pathlib\nHERE = pathlib.Path(__file__).parent\n{OPENED.format(write)}")
    recipe = project.recipe()
    assert recipe.preprocess is not None
    observer = Observer(recipe)
    with observer.watching() as watch:
        recipe.preprocess(None)
    assert "os.open" in watch.failure


def test_a_temporary_folder_with_folders_is_no_input(project: Project) -> None:
    """Removing it opens and lists folders by descriptors."""
    source = (
        "import tempfile\ndef f(x):\n    with tempfile.TemporaryDirectory() as place:\n"
        "        os.makedirs(place + '/a/b')\n        return len(os.listdir(place))"
    )
    watched = Watched(project, source)
    assert watched.changed() is None
    assert all(name.startswith("cwd:") for name in watched.names)
