"""The examples that show a cache of one's own beside prepcache: ours is right after every change."""

import json
from pathlib import Path

import pytest

from support.pages import REPO
from support.sandbox import sandbox

EXAMPLES = REPO / "examples"


def run(folder: Path, example: str, call: str) -> dict[str, dict[str, object]]:
    driver = folder / "driver.py"
    driver.write_text(
        f"import json, sys\nimport torch\nsys.path.insert(0, {str(EXAMPLES)!r})\nfrom {example} import main\n"
        f"if __name__ == '__main__':\n    print(json.dumps(main{call}))\n"
    )
    with sandbox() as box:
        box.start_daemon()
        return dict(json.loads(box.python(driver, cwd=folder).stdout))


@pytest.mark.nightly
def test_ours_is_right_where_a_cache_file_of_ones_own_is_stale(tmp_path):
    told = run(tmp_path, "one_file_cache", "(60)")
    for after, by in told.items():
        is_change = after not in ("second run", "text touched, not changed")
        assert str(by["prepcache"]).startswith("computed, " if is_change else "kept, "), after
        assert "STALE" not in str(by["prepcache"])
    for variant in ("bytes", "times", "mixed"):
        assert "STALE" in str(told["helper changed"][variant])
        assert "STALE" in str(told["config changed"][variant])


def test_an_image_that_occurs_30_times_is_decoded_once(tmp_path):
    told = run(tmp_path, "memory_mapped_images", "(7, 30)")
    assert told["memory-mapped class"]["made"] == 210
    assert told["prepcache"]["made"] == 7
    assert float(str(told["prepcache"]["bytes"])) < float(str(told["memory-mapped class"]["bytes"])) / 10
