"""Golden artifacts: files that were written once stay readable, and writing them again gives their bytes."""

from pathlib import Path

import pytest
from blake3 import blake3

from prepcache import artifact
from support.artifacts import same, samples_of, write_items
from support.golden_artifacts import GOLDEN, OBSERVED

HERE = Path(__file__).parent

DIGESTS = {
    "dense": "f79f3c2a40dd7c2ac1f3aeade3e40192ecc77a3d5479e3dce0c38cedb4d4604d",
    "ragged": "b4bc09a1204d7f8e877c357658f20b69f436b87411bebfb0ab85715d5d1a2ea3",
    "mixed": "3491c59794ad46ac20beb8d0b23c59f33b57086849b59a7c84b7d44a048596d8",
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_artifacts_stay_readable(name):
    """What an earlier prepcache wrote, this one reads, to the bit."""
    found = artifact.open(HERE / f"artifact-{name}.safetensors")
    expected = [sample for item in GOLDEN[name] for sample in item]
    assert found.rows == len(expected) and all(map(same, samples_of(found), expected))
    assert found.row_count.tolist() == [len(item) for item in GOLDEN[name]]
    assert found.header.inputs == []


def test_what_a_golden_artifact_observed_stays_readable():
    """Its bytes are not pinned: zlib's differ from one build of it to another."""
    assert artifact.open(HERE / "artifact-observed.safetensors").header.inputs == OBSERVED


@pytest.mark.parametrize("name", GOLDEN)
def test_the_same_samples_make_the_same_bytes(tmp_path, name):
    """The writer's bytes are pinned: a change to the format is seen here, and raises its version."""
    write_items(tmp_path / "a", GOLDEN[name])
    golden = (HERE / f"artifact-{name}.safetensors").read_bytes()
    assert (tmp_path / "a").read_bytes() == golden
    assert blake3(golden).hexdigest() == DIGESTS[name]
