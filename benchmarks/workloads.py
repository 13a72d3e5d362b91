"""Workloads: what is cached, sample by sample; deterministic, so that every contestant can be checked.

Invariants:
    1. Sample i of a workload has the same bytes in every process; its second field is i.
    2. The function of a workload is cheap; what is measured begins when everything is cached.
"""

import functools
import importlib
import os
import random
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

MEAN_WORDS = 200
"""Mean length of W2's sequences."""
MELS = 40
DISTINCT_CLIPS = 24
"""Half a second to two; 118 frames on the mean."""


@dataclass(frozen=True)
class Workload:
    """Samples (array, number).

    Args:
        name: in tables and on the command line.
        about: for people.
        count: samples.
        batch_size: of every contestant.
        shape: of a sample's array; None if they differ in length.
        dtype: of it.
        array: number -> array.
        mean_shape: of a sample of mean size, if they differ.
    """

    name: str
    about: str
    count: int
    batch_size: int
    shape: tuple[int, ...] | None
    dtype: str
    array: Callable[[int], Array]
    mean_shape: tuple[int, ...] = ()

    @property
    def is_ragged(self) -> bool:
        return self.shape is None

    @property
    def flat_shape(self) -> tuple[int, ...]:
        """The shape of every sample, or of one of mean length."""
        return self.mean_shape if self.shape is None else self.shape

    @property
    def row_shape(self) -> tuple[int, ...]:
        """What the elements of a sample are reshaped to; its first axis may be of any length."""
        return (-1, *self.mean_shape[1:]) if self.shape is None else self.shape

    @property
    def sample_bytes(self) -> int:
        """Bytes of a sample, on the mean."""
        return int(np.prod(self.flat_shape)) * np.dtype(self.dtype).itemsize

    def cropped(self, sample: Any) -> Any:
        """A transform: a random part of the image, of seven eighths of each side, flipped or not."""
        image, number = np.asarray(sample[0]), sample[1]
        height, width = (7 * side // 8 for side in image.shape[1:])
        top, left = (random.randrange(side // 8 + 1) for side in image.shape[1:])
        image = image[:, top : top + height, left : left + width]
        return np.ascontiguousarray(image[:, :, ::-1] if random.random() < 0.5 else image), number

    def sample(self, number: int) -> tuple[Any, int]:
        """A sample as preprocessing makes it: (tensor, number)."""
        import torch

        return torch.from_numpy(self.array(number)), number


def _noise(number: int, shape: tuple[int, ...], dtype: str) -> Array:
    """Bytes that no file system or codec can squeeze, different for each number, and quick to make."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.random.Generator(np.random.SFC64(number)).bytes(count)
    return np.frombuffer(bytearray(raw), dtype).reshape(shape)


def _images(number: int) -> Array:
    return _noise(number, (3, 64, 64), "u1")


def _odd(*shape: int) -> Callable[[int], Array]:
    return lambda number: _noise(number, shape, "u1")


def _smoke(number: int) -> Array:
    return _noise(number, (3, 8, 8), "u1")


def _crops(number: int) -> Array:
    return (_noise(number, (3, 224, 224), "u2") / np.float32(65536)).astype("f4")


def _words(number: int) -> Array:
    length = int(np.random.Generator(np.random.SFC64(number)).integers(1, 2 * MEAN_WORDS))
    return _noise(number, (length,), "i4")


def _spectrogram(number: int) -> Array:
    """`examples/audio.py`, on rising tones."""
    audio = _example("audio")
    clips = Path(tempfile.gettempdir()) / f"prepcache-clips-{os.getuid()}"
    clip = clips / f"tone-{number % DISTINCT_CLIPS}.wav"
    if not clip.exists():
        audio.make_clips(clips, DISTINCT_CLIPS)
    return np.asarray(audio.log_mel(clip, mels=MELS).T.contiguous())


def _photo(number: int) -> Array:
    """`examples/images.py`, on PNGs that the system's packages carry."""
    files = _png_files()
    return np.asarray(_example("images").decode(files[number % len(files)], size=128))


@functools.cache
def _png_files() -> list[Path]:
    files = sorted(path for path in Path("/usr/share").rglob("*.png") if path.stat().st_size > 2048)
    if not files:
        raise FileNotFoundError("no PNGs under /usr/share: leave this workload out")
    return files


def _example(name: str) -> Any:
    examples = str(Path(__file__).resolve().parents[1] / "examples")
    if examples not in sys.path:
        sys.path.insert(0, examples)
    return importlib.import_module(name)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W1", "20,000 x uint8[3,64,64] + label", 20_000, 256, (3, 64, 64), "u1", _images),
        Workload("W2", "50,000 x int32[200 on the mean]", 50_000, 256, None, "i4", _words, (MEAN_WORDS,)),
        Workload("audio", "2,000 log-mel spectrograms", 2_000, 32, None, "f4", _spectrogram, (118, MELS)),
        Workload("photos", "5,000 PNGs as uint8[3,128,128]", 5_000, 128, (3, 128, 128), "u1", _photo),
        Workload("smoke", "64 x uint8[3,8,8] + label: does it run", 64, 8, (3, 8, 8), "u1", _smoke),
        Workload("R12240", "20,000 x uint8[3,60,68]", 20_000, 256, (3, 60, 68), "u1", _odd(3, 60, 68)),
        Workload("R1000", "100,000 x uint8[1000]", 100_000, 256, (1000,), "u1", _odd(1000)),
        Workload("R100", "200,000 x uint8[100]", 200_000, 256, (100,), "u1", _odd(100)),
        Workload("W3", "2,000 x float32[3,224,224] + label", 2_000, 64, (3, 224, 224), "f4", _crops),
    )
}

MEASURED = [name for name in WORKLOADS if name != "smoke" and not name.startswith("R")]
"""What is run unless something else is asked for: not rows of odd sizes, from artifacts without a daemon."""
