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
    "dense": "6f859e27a522cf13ac87a89a45989a488ce647082eb8761788e85a06ff15648e",
    "ragged": "6f79b3c2c008f78b631d9454e16ce628cd6ce7c283c5a2db791bbc6a3af02afc",
    "mixed": "fba473d2b139dea347539acae8276f0fa8d2b5bb1e6e059a64396482dc4651a8",
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_artifacts_stay_readable(name: str) -> None:
    """What an earlier prepcache wrote, this one reads, to the bit."""
    found = artifact.open(HERE / f"artifact-{name}.safetensors")
    expected = [sample for item in GOLDEN[name] for sample in item]
    assert found.rows == len(expected) and all(map(same, samples_of(found), expected))
    assert found.row_count.tolist() == [len(item) for item in GOLDEN[name]]
    assert found.observed == []


def test_what_a_golden_artifact_observed_stays_readable() -> None:
    """Its bytes are not pinned: zlib's differ from one build of it to another."""
    assert artifact.open(HERE / "artifact-observed.safetensors").observed == OBSERVED


@pytest.mark.parametrize("name", GOLDEN)
def test_the_same_samples_make_the_same_bytes(tmp_path: Path, name: str) -> None:
    """The writer's bytes are pinned: a change to the format is seen here, and raises its version."""
    write_items(tmp_path / "a", GOLDEN[name])
    golden = (HERE / f"artifact-{name}.safetensors").read_bytes()
    assert (tmp_path / "a").read_bytes() == golden
    assert blake3(golden).hexdigest() == DIGESTS[name]


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_artifacts_are_safetensors(name: str) -> None:
    """The reference reader takes them."""
    with safetensors.safe_open(HERE / f"artifact-{name}.safetensors", "pt") as file:
        assert "_items.digest" in file.keys()  # noqa: SIM118 - a handle, not a dict
