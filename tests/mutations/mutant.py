"""One mutant: a replacement in one file, and the tests that must notice it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SOURCES = ("client", "server")


@dataclass(frozen=True)
class Mutant:
    """A replacement, and what must fail under it.

    Args:
        name: what is taken away.
        file: the end of the file's path, as much of it as names one file; below `client/` or `server/`
            only, if it begins so. Folders between are left out, so that a file may move.
        old: text that stands there exactly once.
        new: what takes its place.
        tests: arguments for pytest: files, options, and last `-k`.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str

    def path(self, tree: Path) -> Path:
        """The file in a copy of the tree.

        Raises:
            LookupError: none or several end so.
        """
        first, _, rest = self.file.partition("/")
        tops, end = ((first,), rest) if first in SOURCES else (SOURCES, self.file)
        found = [path for top in tops for path in (tree / top).rglob(Path(end).name) if path.match(end)]
        if len(found) != 1:
            raise LookupError(f"{self.name}: {len(found)} files are called {self.file}: {found}")
        return found[0]

    def replaced(self, text: str) -> str:
        """The text with the replacement.

        Raises:
            LookupError: `old` does not stand there exactly once, or nothing would change.
        """
        if text.count(self.old) != 1 or self.old == self.new:
            raise LookupError(
                f"{self.file}: {self.name}: {self.old!r} stands there {text.count(self.old)} times"
            )
        return text.replace(self.old, self.new)

    def apply(self, tree: Path) -> None:
        """Makes the replacement in a copy of the tree."""
        path = self.path(tree)
        _write(path, self.replaced(path.read_text()))

    @contextmanager
    def applied(self, tree: Path) -> Iterator[None]:
        """Makes the replacement for as long as it lasts."""
        path = self.path(tree)
        before = path.read_text()
        try:
            _write(path, self.replaced(before))
            yield
        finally:
            _write(path, before)


def _write(path: Path, text: str) -> None:
    """Writes a source file, and forgets its bytecode: size and second of two writings may be equal."""
    for bytecode in path.parent.glob(f"__pycache__/{path.stem}.*"):
        bytecode.unlink()
    path.write_text(text)


def mutants(file: str, tests: str, table: dict[str, tuple[str, str] | tuple[str, str, str]]) -> list[Mutant]:
    """Mutants of one file: name to (old, new), or (old, new, other tests)."""
    return [
        Mutant(name, file, row[0], row[1], row[2] if len(row) == 3 else tests) for name, row in table.items()
    ]
