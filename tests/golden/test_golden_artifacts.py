"""Golden artifacts: files that were written once stay readable, and writing them again gives their bytes."""

from pathlib import Path

import pytest
from blake3 import blake3

from prepcache import artifact
from support.artifacts import same, samples_of, write_items
from support.golden_artifacts import GOLDEN, OBSERVED

HERE = Path(__file__).parent

DIGESTS = {
    "dense": "7b26179c44ed0c4e2188d0204f8936ee170be9f24ebc82dc551522112b7344a7",
    "ragged": "387edd0387b8b95272471e80b94a88773e336f3ebbd7d805b5a7c7bfb6652fae",
    "mixed": "7369267b08af80f2d72b1cce006574bbc5b92ff1246e1fb143bdc1c827bc4136",
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
