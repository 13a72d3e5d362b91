"""What contract tests share: a daemon with a store of its own, in this process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.serving import Serving, serving


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path) as found:
        yield found
