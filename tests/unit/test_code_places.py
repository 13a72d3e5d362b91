"""Where files belong, whatever links lead to them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prepcache.keys.code.project import Place, Places


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """site/owned.py and loose.py, and links to both and to the folder, from outside and within."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "owned.py").write_text("")
    (tmp_path / "loose.py").write_text("")
    (tmp_path / "folder").symlink_to("site")
    (tmp_path / "file.py").symlink_to("site/owned.py")
    (site / "to_loose.py").symlink_to("../loose.py")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("site/owned.py", Place.SITE),
        ("folder/owned.py", Place.SITE),
        ("file.py", Place.SITE),
        ("folder/../site/owned.py", Place.SITE),
        ("site/to_loose.py", Place.PROJECT),
        ("loose.py", Place.PROJECT),
        ("folder/absent.py", Place.PROJECT),
    ],
)
def test_a_file_belongs_where_links_lead(linked: Path, name: str, place: Place) -> None:
    places = Places({str(linked / "site"): {"owned"}})
    for _ in range(2):
        assert places.of(str(linked / name)) is place
    assert places._real(str(linked / name)) == os.path.realpath(linked / name)
