"""What people read is plain English, and `make sentences` lists all of it."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator

import pytest

from support.pages import REPO
from support.sentences import Sentence, sentences

NOT_PLAIN = re.compile(
    r"\b(?:anew|is told|made again|as said above|again and again|for good|what there was|broken off"
    r"|want of room|(?<!there )is no [a-z]+)\b"
)


@pytest.fixture(scope="module")
def all_of_them() -> list[Sentence]:
    return list(sentences())


def test_no_sentence_has_words_that_nobody_says(all_of_them):
    found = [one for one in all_of_them if NOT_PLAIN.search(one.text)]
    assert found == [], "\n".join(f"{one.file.relative_to(REPO)}:{one}" for one in found)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("errors.py", "the daemon refused the request"),
        ("cli.py", "Remove the entries that pass every filter."),
        ("cli.py", "List what would go; remove nothing."),
        ("cli_tables.py", "How do I free 50 GB?"),
        ("explain.py", "{} of this name is cached yet"),
        ("report.py", "PREPCACHE=readonly: new samples are not stored"),
        ("page.html", "no job has missed since the daemon started"),
        ("server.py", "serving %s on %s (pid %d)"),
        ("metrics.py", "Entries evicted."),
        ("progress.py", "{} of {} items"),
    ],
)
def test_sentences_of_every_kind_are_found(all_of_them, file, text):
    assert any(one.file.name == file and text in one.text for one in all_of_them)


OF_A_USER = {"train.py", "script.py", "prep.py", "plugins/fast.py"}
"""Files of a user, in examples."""


def comments(source: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield str(node.value.value)


def test_modules_that_comments_name_are_there():
    files = [path for part in ("client", "server", "tests") for path in (REPO / part).rglob("*.py")]
    there = {"/".join(path.parts[-n:]) for path in files for n in range(1, 6)}
    named = {
        (path.name, name)
        for path in files
        if REPO / "tests" not in path.parents
        for comment in comments(path.read_text())
        for name in re.findall(r"\b[\w/]+\.py\b", comment)
    }
    assert [where for where in sorted(named) if where[1] not in there | OF_A_USER] == []
