"""A daemon whose index is damaged under it: it ends, and the next start has everything again."""

from __future__ import annotations

import os
from pathlib import Path

from prepcache.errors import IndexCorrupt
from support.serving import READY_S, http_client, open_job, process

PAGE = 4096


def damage(path: Path, skipped: int) -> None:
    """Overwrites all but the first bytes."""
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.seek(skipped)
        file.write(os.urandom(max(0, size - skipped)))


def test_a_damaged_index_ends_the_daemon_and_is_rebuilt(tmp_path: Path) -> None:
    index = tmp_path / "root" / "v1" / "index.sqlite"
    with process(tmp_path) as first, http_client(tmp_path / "s.sock") as http:
        open_job(http).fill(str(tmp_path / "root" / "v1" / "staging"), "abc")
        damage(index, PAGE)
        damage(index.with_name("index.sqlite-wal"), 32)
        assert first.wait(READY_S) == IndexCorrupt.exit_code
    with process(tmp_path), http_client(tmp_path / "s.sock") as http:
        assert [one["items"] for one in http.get("/v1/entries").json()["entries"]] == [3]
        assert http.get("/v1/stats").json()["recovered"] == {"new index": 1, "indexed": 1}
    log = (tmp_path / "log").read_text()
    assert "the next start rebuilds it" in log and "Traceback" not in log
