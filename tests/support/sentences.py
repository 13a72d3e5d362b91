"""Every text of the product that a person may read: messages of errors and logs, the commands, the page.

`make sentences` prints them file by file, so that a reader can go through them in one sitting. They are found
by walking the source: every string of two words or more that is neither a docstring nor SQL, the help of the
commands, and the text of the page's templates. A `{}` stands for a value.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.pages import REPO

ROOTS = (REPO / "client" / "prepcache", REPO / "server" / "prepcached")
_WORD = r"[A-Za-z][A-Za-z'\-]*[,;:.)]*"
_TWO_WORDS = re.compile(rf"{_WORD} +(?:\{{\}}[,;:]? +)*[(`'\"]?{_WORD}|{_WORD} +\{{\}}|\{{\}} +{_WORD}")
_SQL_OR_PATTERN = re.compile(
    r"^\s*(?:SELECT|INSERT|UPDATE|DELETE|CREATE|PRAGMA|DROP|ALTER|BEGIN|VACUUM|OR) |\\[bAZSd]|\(\?"
)


@dataclass(frozen=True)
class Sentence:
    """A text and where it stands."""

    file: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.line:5}  {self.text}"


def sentences() -> Iterator[Sentence]:
    """All of them, in the order of files and lines."""
    for root in ROOTS:
        for file in sorted(root.rglob("*")):
            if file.suffix == ".py":
                yield from _in_source(file)
            elif file.suffix in (".html", ".js"):
                yield from _in_template(file)


def _in_source(file: Path) -> Iterator[Sentence]:
    tree = ast.parse(file.read_text())
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            skipped.update(id(part) for part in node.values)
        if isinstance(node, ast.FunctionDef) and any(map(_is_command, node.decorator_list)):
            yield Sentence(file, node.lineno, " ".join((ast.get_docstring(node) or "").split()))
    found = [
        Sentence(file, node.lineno, text)
        for node in ast.walk(tree)
        if id(node) not in skipped and (text := _text(node)) is not None
    ]
    yield from sorted(found, key=lambda one: one.line)


def _is_command(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Attribute) and called.attr in ("command", "callback")


def _text(node: ast.AST) -> str | None:
    """What a string, or one with values in it, reads like; None if it is no text for people."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
    elif isinstance(node, ast.JoinedStr):
        text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    else:
        return None
    is_for_people = _TWO_WORDS.search(text) and not _SQL_OR_PATTERN.search(text) and "\n    " not in text
    return text if is_for_people else None


def _in_template(file: Path) -> Iterator[Sentence]:
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        if file.suffix == ".js":
            texts = re.findall(r"\"([^\"]* [^\"]*)\"", line)
        else:
            plain = re.sub(r"\{\{.*?\}\}", "{}", re.sub(r"\{%.*?%\}", "", line))
            texts = re.split(r"<[^>]*>", plain)
        for text in texts:
            if _TWO_WORDS.search(text):
                yield Sentence(file, number, text.strip())


def main() -> None:
    """Prints all sentences."""
    file = None
    for one in sentences():
        if one.file != file:
            file = one.file
            print(f"\n{file.relative_to(REPO)}")
        print(one)


if __name__ == "__main__":
    main()
