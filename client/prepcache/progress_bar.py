"""Bars that show a fill: one drawn by rich on a terminal, one by IPython in a notebook.

Loaded when a bar is shown, and only then.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

from prepcache.protocol.units import middle_cut

BAR_WIDTH = 10
WIDE = 80
"""Columns; a narrower terminal has the numbers alone."""

Line = Callable[[int | None], str]
"""The numbers beside the bar, in at most so many characters."""


class Bar(Protocol):
    """What `Progress` draws."""

    def draw(self, name: str, done: int, total: int, line: Line) -> None:
        """Shows how far it is."""

    def stop(self) -> None:
        """Ends the drawing."""


class TerminalBar:
    """A bar on standard error that goes away at the end."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        console = Console(stderr=True, force_terminal=True)
        columns = (
            TextColumn("{task.fields[name]}"),
            BarColumn(BAR_WIDTH),
            TextColumn("{task.description}"),
        )
        shown = columns if console.width >= WIDE else columns[::2]
        self._bar = Progress(*shown, console=console, transient=True, auto_refresh=False)
        self._bar.start()
        self._task = self._bar.add_task("", total=total, name="")

    def draw(self, name: str, done: int, total: int, line: Line) -> None:
        width = self._bar.console.width
        name = middle_cut(name, 3 * width // 10)
        taken = len(name) + 2 + (BAR_WIDTH + 1 if width >= WIDE else 0)
        self._bar.update(self._task, completed=done, description=line(width - taken), name=name)
        self._bar.refresh()

    def stop(self) -> None:
        self._bar.stop()


class NotebookBar:
    """A bar below the cell, which stays there with the last numbers."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._shown = ("", 0, 0, "")

    def draw(self, name: str, done: int, total: int, line: Line) -> None:
        self._shown = (name, done, total, line(None))
        if self._handle is None:
            ipython: Any = import_module("IPython.display")
            self._handle = ipython.display(self, display_id=True)
        else:
            self._handle.update(self)

    def stop(self) -> None:
        """The last numbers stay."""

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        name, done, total, line = self._shown
        bar = f'<progress value="{done}" max="{total}"></progress>'
        return {
            "text/plain": f"{name}: {line}",
            "text/html": f"<div>{html.escape(name)} {bar} {html.escape(line)}</div>",
        }
