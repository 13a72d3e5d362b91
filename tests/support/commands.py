"""The `prepcache` command in this process, as a fixture."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from prepcache.command import cli


@dataclass
class Ended:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ended]


@pytest.fixture(name="run")
def run_fixture(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["prepcache", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        code = ended.value.code
        assert "Traceback" not in said.err
        return Ended(code if isinstance(code, int) else 0 if code is None else 1, said.out, said.err)

    return run
