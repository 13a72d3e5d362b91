"""The public names: lazily loaded at run time, and of known types for editors and type checkers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import prepcache
from prepcache.errors import all_errors

CLIENT = Path(prepcache.__file__).parents[1]
MOST_MODULES = 130
"""Of ours, that the first use of `CachedDataset` may load: most of them are about keys."""


def test_public_names_are_there_and_others_are_said_not_to_be() -> None:
    public = {error.__name__ for error in all_errors()} & set(prepcache.__all__)
    assert 6 <= len(public) <= 8 and set(prepcache.__all__) == set(dir(prepcache))
    assert all(issubclass(error, prepcache.PrepcacheError) for error in all_errors())
    assert prepcache.errors.NotFound in all_errors()
    for name in prepcache.__all__:
        assert getattr(prepcache, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'CachedDatset'"):
        _ = prepcache.CachedDatset  # type: ignore[attr-defined]


def test_a_type_checker_knows_the_types_of_public_names(tmp_path: Path) -> None:
    names = [name for name in prepcache.__all__ if not name.startswith("_") and name != "errors"]
    lines = ["import prepcache", *(f"reveal_type(prepcache.{name})" for name in names), "prepcache.Misspelt"]
    script = tmp_path / "script.py"
    script.write_text("\n".join(lines))
    # Without libraries, whose stubs take seconds to read.
    options = ["--strict", "--no-site-packages", "--ignore-missing-imports", "--follow-imports=silent"]
    command = [sys.executable, "-m", "mypy", *options, "--config-file=", "--cache-dir=/dev/null", str(script)]
    checked = subprocess.run(
        command, cwd=tmp_path, env={"MYPYPATH": str(CLIENT)}, capture_output=True, text=True, check=False
    )
    told = re.findall(r'Revealed type is "(.*)"', checked.stdout)
    assert len(told) == len(names), checked
    assert not {name: told for name, told in zip(names, told, strict=True) if told in ("Any", "def ()")}
    assert 'no attribute "Misspelt"' in checked.stdout


def test_what_makes_samples_is_loaded_when_one_is_missing() -> None:
    script = "import sys, prepcache; prepcache.CachedDataset; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {name for name in told.stdout.split() if name.startswith("prepcache")}
    assert "prepcache.samples" in loaded
    assert loaded.isdisjoint({"prepcache.making", "prepcache.fill.filler", "prepcache.fill.workers"})
    assert len(loaded) <= MOST_MODULES, sorted(loaded)
