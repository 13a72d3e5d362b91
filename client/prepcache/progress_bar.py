"""Bars that show a fill: rich's on a terminal, IPython's below a notebook's cell. Loaded when shown."""

from __future__ import annotations

import html
from importlib import import_module
from typing import Any, Protocol


class Bar(Protocol):
    """What `Progress` draws."""

    def draw(self, name: str, done: int, total: int, line: str) -> None:
        """Shows how far it is."""

    def stop(self) -> None:
        """Ends the drawing."""


class TerminalBar:
    """A bar on standard error that goes away at the end. What does not fit into the terminal is cut."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        console = Console(stderr=True, force_terminal=True)
        name, line = (Column(no_wrap=True, overflow="ellipsis", max_width=w) for w in (24, None))
        columns = (
            TextColumn("{task.fields[name]}", table_column=name),
            BarColumn(10),
            TextColumn("{task.description}", table_column=line),
        )
        self._bar = Progress(*columns, console=console, transient=True, auto_refresh=False)
        self._bar.start()
        self._task = self._bar.add_task("", total=total, name="")

    def draw(self, name: str, done: int, total: int, line: str) -> None:
        self._bar.update(self._task, completed=done, description=line, name=name, refresh=True)

    def stop(self) -> None:
        self._bar.stop()


class NotebookBar:
    """A bar below the cell, which stays there with the last numbers."""

    def __init__(self) -> None:
        self._handle: Any = None

    def draw(self, name: str, done: int, total: int, line: str) -> None:
        display: Any = import_module("IPython.display")
        bar = f'<progress value="{done}" max="{total}"></progress>'
        shown = {
            "text/plain": f"{name}: {line}",
            "text/html": f"<div>{html.escape(name)} {bar} {html.escape(line)}</div>",
        }
        if self._handle is None:
            self._handle = display.display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)

    def stop(self) -> None:
        """The last numbers stay."""
