"""What people read is plain English, and `make sentences` lists all of it."""

from __future__ import annotations

import re

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


def test_no_sentence_has_words_that_nobody_says(all_of_them: list[Sentence]) -> None:
    found = [one for one in all_of_them if NOT_PLAIN.search(one.text)]
    assert found == [], "\n".join(f"{one.file.relative_to(REPO)}:{one}" for one in found)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("errors.py", "the daemon refused the request"),
        ("cli.py", "Remove the entries that pass every filter."),
        ("cli.py", "List what would go; remove nothing."),
        ("cli_tables.py", "How do I free 50 GB?"),
        ("report.py", "nothing of this name is cached yet"),
        ("report.py", "PREPCACHE=readonly: new samples are not stored"),
        ("page.html", "no job has missed since the daemon started"),
        ("server.py", "serving %s on %s (pid %d)"),
        ("metrics.py", "Entries evicted."),
        ("progress.py", "{} of {} items"),
    ],
)
def test_sentences_of_every_kind_are_found(all_of_them: list[Sentence], file: str, text: str) -> None:
    assert any(one.file.name == file and text in one.text for one in all_of_them)
