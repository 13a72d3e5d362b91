"""The pages of the documentation: their code blocks, their words, and sample data for what they run."""

import math
import re
import wave
from array import array
from pathlib import Path

from PIL import Image

REPO = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def all_pages() -> list[Path]:
    """Every Markdown page that people read, generated ones left out."""
    found = [
        REPO / "README.md",
        REPO / "ARCHITECTURE.md",
        REPO / "CONTRIBUTING.md",
        REPO / "deploy" / "README.md",
    ]
    return [page for page in found if page.exists()] + sorted((REPO / "docs").rglob("*.md"))


def blocks(page: Path, language: str) -> list[str]:
    """The fenced code blocks of one language, in their order; files that a page includes are left out."""
    found = [text for kind, text in _BLOCK.findall(page.read_text()) if kind == language]
    return [text for text in found if not text.startswith("--8<--")]


def words(page: Path) -> int:
    return len(page.read_text().split())


def lay_sample_data(folder: Path) -> None:
    """`corpus/*.txt`, `images/*.png` with captions beside them, and `clips/*.wav`, as the pages use them."""
    for name in ("corpus", "images", "clips"):
        (folder / name).mkdir()
    for number in range(12):
        (folder / "corpus" / f"{number:03}.txt").write_text(f"the cat number {number} sat on the mat\n")
        image = Image.new("RGB", (40 + number, 30), (number * 20, 100, 200))
        image.save(folder / "images" / f"{number:03}.png")
        (folder / "images" / f"{number:03}.txt").write_text(f"a picture of {number}")
        frames = array(
            "h", (int(9000 * math.sin(step / (number + 3))) for step in range(2000 + 100 * number))
        )
        with wave.open(str(folder / "clips" / f"{number:03}.wav"), "wb") as clip:
            clip.setparams((1, 2, 16000, len(frames), "NONE", ""))
            clip.writeframes(frames.tobytes())
