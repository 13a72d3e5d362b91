"""What the documentation shows runs: its Python as it stands, its commands as far as their options go."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

import typer

from prepcache.command.cli import app as client_command
from prepcached.cli import app as daemon_command
from support.pages import REPO, all_pages, blocks, lay_sample_data
from support.sandbox import sandbox

_PROGRAMS = {"prepcache": client_command, "prepcached": daemon_command}


def test_python_of_the_pages_runs(tmp_path: Path) -> None:
    """Each page is one module, so that its later blocks may use the names of its earlier ones."""
    lay_sample_data(tmp_path)
    modules = []
    for page in all_pages():
        if code := blocks(page, "python"):
            name = "page_" + re.sub(r"\W", "_", str(page.relative_to(REPO).with_suffix("")))
            (tmp_path / f"{name}.py").write_text("\n".join(code))
            modules.append(name)
    assert len(modules) > 8
    driver = tmp_path / "run_pages.py"
    driver.write_text(
        "import importlib, sys, torch\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
    )
    with sandbox() as box:
        box.python(driver, *modules, cwd=tmp_path)


def commands() -> list[str]:
    """Every line of a shell block that calls one of our two programs."""
    found = []
    for page in all_pages():
        for block in blocks(page, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                calls = [at for at, word in enumerate(words[:-1]) if os.path.basename(word) in _PROGRAMS]
                if calls and (calls[-1] == 0 or words[0] == "sudo"):
                    found.append(shlex.join([os.path.basename(words[calls[-1]]), *words[calls[-1] + 1 :]]))
    return sorted(set(found))


def test_commands_of_the_pages_have_those_options() -> None:
    for line in commands():
        program, *arguments = shlex.split(line)
        command: Any = typer.main.get_command(_PROGRAMS[program])
        while hasattr(command, "commands"):
            name, *arguments = arguments
            command = command.commands[name]
        command.make_context(name, arguments)


def test_the_pages_show_commands() -> None:
    assert len(commands()) > 10
