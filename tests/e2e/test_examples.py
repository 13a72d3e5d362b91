"""The public examples: cold, warm in a new process, an edited file, an edited script, an edited config.

Each must preprocess exactly what changed, and give the tensors that it gives without the cache, to the bit.
"""

import importlib
import json
import shutil
import sysconfig
import wave
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console

from support.sandbox import Sandbox

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@dataclass(frozen=True)
class Example:
    """One example: how its data is laid and edited, and which edits of script and config change samples."""

    script: str
    argument: str
    items: int
    lay: Callable[[Path], None]
    edit_data: Callable[[Path], None]
    edit_script: tuple[str, str]
    config: tuple[str, str]


def lay_images(folder: Path) -> None:
    """PNGs that installed packages carry."""
    (folder / "data").mkdir()
    found = sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*.png"))[:6]
    assert len(found) == 6, "the packages that make test installs carry PNGs"
    for index, path in enumerate(found):
        shutil.copyfile(path, folder / "data" / f"{index}-{path.name}")


def edit_image(folder: Path) -> None:
    path = min((folder / "data").iterdir())
    with Image.open(path) as image:
        turned = image.convert("RGBA").convert("RGB").rotate(180)
    turned.putpixel((0, 0), (1, 2, 3))
    turned.save(path)


def lay_text(folder: Path) -> None:
    """A text that every Python carries."""
    (folder / "data").mkdir()
    shutil.copyfile(
        Path(sysconfig.get_paths()["stdlib"]) / "pydoc_data" / "topics.py", folder / "data" / "text.txt"
    )


def edit_text(folder: Path) -> None:
    path = folder / "data" / "text.txt"
    path.write_text("first line\n" + path.read_text())


def edit_clip(folder: Path) -> None:
    path = min((folder / "data").glob("*.wav"))
    with wave.open(str(path), "rb") as clip:
        params, pcm = clip.getparams(), bytearray(clip.readframes(clip.getnframes()))
    pcm[100:102] = b"\x10\x20"
    with wave.open(str(path), "wb") as clip:
        clip.setparams(params)
        clip.writeframes(pcm)


CASES = [
    Example("images.py", "data", 6, lay_images, edit_image, ("BILINEAR", "NEAREST"), ("--size", "48")),
    Example("text_lines.py", "data/text.txt", 1, lay_text, edit_text,
            ("line.strip()", "line.rstrip()"), ("--length", "16")),
    Example("audio.py", "data", 8, lambda folder: None, edit_clip,
            ("min=1e-10", "min=1e-8"), ("--mels", "20")),
]  # fmt: skip


@pytest.fixture
def box(box: Sandbox) -> Sandbox:
    box.start_daemon()
    return box


def test_the_demos_table_fits_80_columns(capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    demo = importlib.import_module("demo")
    facts = dict.fromkeys(("computed", "waited", "hit", "items"), 1601)
    facts |= {"ready_s": 130.27, "bytes": 620_000_000, "digest": "0f"}
    assert demo.show(Console(width=80), [("6 config changed back", facts, facts)])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and "…" not in "".join(lines)
    (row,) = (line for line in lines if "6 config changed back" in line)
    assert row.split()[4:] == ["1,601", "1,601", "1,601", "130.27", "s", "591.3", "MiB", "yes"]


@pytest.mark.nightly
@pytest.mark.parametrize("example", CASES, ids=lambda example: example.script)
def test_example_preprocesses_exactly_what_changed(example, box):
    code = box.folder / "code"
    shutil.copytree(EXAMPLES, code)
    example.lay(box.folder)

    def job(*options: str, mode: str = "on") -> dict[str, Any]:
        command = (code / example.script, box.folder / example.argument, *options)
        return dict(json.loads(box.python(*command, environ={"PREPCACHE": mode}).stdout.splitlines()[-1]))

    def outcome(facts: dict[str, Any]) -> tuple[int, int, str]:
        return facts["computed"], facts["hit"], facts["digest"]

    plain = job(mode="off")
    assert outcome(job()) == (example.items, 0, plain["digest"])
    assert outcome(job()) == (0, example.items, plain["digest"])

    example.edit_data(box.folder)
    edited = job(mode="off")
    assert edited["digest"] != plain["digest"]
    assert outcome(job()) == (1, example.items - 1, edited["digest"])

    other = job(*example.config, mode="off")
    assert other["digest"] != edited["digest"]
    assert outcome(job(*example.config)) == (example.items, 0, other["digest"])
    assert outcome(job()) == (0, example.items, edited["digest"])

    script = code / example.script
    old, new = example.edit_script
    assert old in script.read_text()
    script.write_text(script.read_text().replace(old, new))
    rewritten = job(mode="off")
    assert rewritten["digest"] != edited["digest"]
    assert outcome(job()) == (example.items, 0, rewritten["digest"])
