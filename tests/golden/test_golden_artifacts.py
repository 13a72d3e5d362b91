"""Golden artifacts: files that were written once stay readable, and writing them again gives their bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors
from blake3 import blake3

from prepcache import artifact
from support.artifacts import same, samples_of, write_items
from support.golden_artifacts import GOLDEN, OBSERVED

HERE = Path(__file__).parent

DIGESTS = {
    "dense": "0f453b5aae9292b1eba65a9ce288d907dcc6f6d026e61661cbe47aff8a43e1fd",
    "ragged": "04e9b2eaeac165cfe4851f1a7b878c61428eb4a96139d140e1b50d1131238901",
    "mixed": "e7e71d0e3d5cfe60ee312d4a6ba63bea6d041c7a7c671cefb08c654b13603373",
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_artifacts_stay_readable(name: str) -> None:
    """What an earlier prepcache wrote, this one reads, to the bit."""
    found = artifact.open(HERE / f"artifact-{name}.safetensors")
    expected = [sample for item in GOLDEN[name] for sample in item]
    assert found.rows == len(expected) and all(map(same, samples_of(found), expected))
    assert found.row_count.tolist() == [len(item) for item in GOLDEN[name]]
    assert found.observed == OBSERVED


@pytest.mark.parametrize("name", GOLDEN)
def test_the_same_samples_make_the_same_bytes(tmp_path: Path, name: str) -> None:
    """The writer's bytes are pinned: a change to the format is seen here, and raises its version."""
    write_items(tmp_path / "a", GOLDEN[name], observed=OBSERVED)
    golden = (HERE / f"artifact-{name}.safetensors").read_bytes()
    assert (tmp_path / "a").read_bytes() == golden
    assert blake3(golden).hexdigest() == DIGESTS[name]


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_artifacts_are_safetensors(name: str) -> None:
    """The reference reader takes them."""
    with safetensors.safe_open(HERE / f"artifact-{name}.safetensors", "pt") as file:
        assert "_items.digest" in file.keys()  # noqa: SIM118 - a handle, not a dict
