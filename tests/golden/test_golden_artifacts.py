"""Golden artifacts: files that were written once stay readable, and writing them again gives their bytes."""

from pathlib import Path

import pytest
from blake3 import blake3

from prepcache import artifact
from support.artifacts import same, samples_of, write_items
from support.golden_artifacts import GOLDEN, OBSERVED

HERE = Path(__file__).parent

DIGESTS = {
    "dense": "62eebc7c0cc59cf5992d5e9c186287fa04d58021548c255520de60022b494227",
    "ragged": "a04a4f9bc9b9eaca41b02e2f275bca62cfc11be00572e2fa013f7363c9e4db85",
    "mixed": "0837e1a1aa90d91002517f6845ee99580bead548478e13bfd363aa6b1ecae03b",
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
