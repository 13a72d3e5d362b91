"""WAV files to log-mel spectrograms: python examples/audio.py FOLDER [--mels 40]

Clips differ in length, so the samples are ragged: float32[mels, frames]. They are stored as one column of
values with offsets, and come back in their own shapes; batches are padded along the frames. A folder without
.wav files is given a few first.
"""

import argparse
import math
import wave
from pathlib import Path

import torch

import prepcache
from show import summary

RATE_HZ = 16_000


def mel_filters(mels: int, bins: int) -> torch.Tensor:
    """Triangular filters, float32[mels, bins], evenly spaced on the mel scale of O'Shaughnessy (1987)."""
    top = 2595 * math.log10(1 + RATE_HZ / 2 / 700)
    edges_hz = 700 * (10 ** (torch.linspace(0, top, mels + 2) / 2595) - 1)
    freqs_hz = torch.linspace(0, RATE_HZ / 2, bins)
    rise = (freqs_hz - edges_hz[:-2, None]) / (edges_hz[1:-1] - edges_hz[:-2])[:, None]
    fall = (edges_hz[2:, None] - freqs_hz) / (edges_hz[2:] - edges_hz[1:-1])[:, None]
    return torch.minimum(rise, fall).clamp(min=0)


def log_mel(path: Path, mels: int, window: int = 400, hop: int = 160) -> torch.Tensor:
    """One mono 16-bit clip as float32[mels, frames], in natural-log units."""
    with wave.open(str(path), "rb") as clip:
        pcm = bytearray(clip.readframes(clip.getnframes()))
    signal = torch.frombuffer(pcm, dtype=torch.int16).float() / 32768
    spectrum = torch.stft(signal, window, hop, window=torch.hann_window(window), return_complex=True)
    return (mel_filters(mels, window // 2 + 1) @ spectrum.abs().square()).clamp(min=1e-10).log()


def make_clips(folder: Path, count: int = 8) -> None:
    """Writes `count` rising tones of different lengths."""
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        t = torch.arange(RATE_HZ // 2 + index * 1_000) / RATE_HZ
        tone = (0.5 * torch.sin(2 * math.pi * (200 + 150 * index) * t * (1 + t)) * 32767).to(torch.int16)
        with wave.open(str(folder / f"tone-{index}.wav"), "wb") as clip:
            clip.setparams((1, 2, RATE_HZ, 0, "NONE", "not compressed"))
            clip.writeframes(tone.numpy().tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mels", type=int, default=40)
    args = parser.parse_args()

    if not any(args.folder.glob("*.wav")):
        make_clips(args.folder)
    clips = sorted(args.folder.glob("*.wav"))
    features = prepcache.CachedDataset(clips, log_mel, config={"mels": args.mels}, root=args.folder)
    # "" is the sample itself, and 1 its second axis; of a dict it would be {"mel": 1}.
    pad = prepcache.pad_collate(math.log(1e-10), leaves={"": 1}, also="lengths")
    for batch, frames in prepcache.Loader(features, 4, collate_fn=pad):
        print(f"a batch: {tuple(batch.shape)}, of clips of {frames.tolist()} frames")
    print(summary(features))


if __name__ == "__main__":
    main()
