"""The main job, shown on real input: `make demo`.

Tokenises the sources of Python's own standard library with a byte-pair vocabulary trained on them, in
training jobs that share a cache: two cold ones at once, a warm one, one after a file was edited, one with
another config, one with the config changed back. The daemon starts by itself, in a folder of this demo's own,
and is stopped at the end. Every job's samples are compared with those of a job that ran without the cache.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).resolve().parent
SKIPPED = {"site-packages", "test", "tests", "idle_test", "lib2to3", "idlelib", "__pycache__"}
VOCABULARY_SIZE = 4096
MAX_TOKENS = 4096


@dataclass
class Demo:
    """One run: its folder, and the environment that keeps its daemon apart from the user's own."""

    folder: Path
    console: Console

    @property
    def data(self) -> Path:
        return self.folder / "sources"

    @property
    def vocabulary(self) -> Path:
        return self.folder / "vocabulary.json"

    def environment(self, mode: str = "on") -> dict[str, str]:
        """What the jobs inherit: their own cache and runtime folders, so that the demo begins cold."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PREPCACHE")}
        return kept | {
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "XDG_RUNTIME_DIR": str(self.folder),
            "PREPCACHE": mode,
            "TOKENIZERS_PARALLELISM": "false",
        }

    def start(self, label: str, mode: str = "on", max_tokens: int = MAX_TOKENS) -> tuple[Any, Path]:
        """Starts a training job; its summary appears at the path returned."""
        summary = self.folder / f"{label}.json"
        command = [sys.executable, str(HERE / "train_lm.py"), str(self.data), str(self.vocabulary)]
        command += ["--max-tokens", str(max_tokens), "--summary", str(summary)]
        return subprocess.Popen(command, env=self.environment(mode)), summary

    def finish(self, job: Any, summary: Path) -> dict[str, Any]:
        """Waits for a job and returns its summary; a job that failed ends the demo."""
        if job.wait() != 0:
            raise SystemExit(f"the job of {summary.stem} failed with exit code {job.returncode}")
        return dict(json.loads(summary.read_text()))

    def run(self, label: str, mode: str = "on", max_tokens: int = MAX_TOKENS) -> dict[str, Any]:
        self.console.print(f"[bold]{label}[/bold]")
        return self.finish(*self.start(label, mode, max_tokens))


def copy_sources(target: Path) -> int:
    """Copies the standard library's modules, without its tests; returns how many files they are."""
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    count = 0
    for path in sorted(stdlib.rglob("*.py")):
        relative = path.relative_to(stdlib)
        if SKIPPED.isdisjoint(relative.parts):
            (target / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / relative)
            count += 1
    return count


def train_vocabulary(sources: Path, target: Path) -> None:
    """Trains a byte-level BPE vocabulary (Sennrich et al. 2016) on every fourth file; kept as one file."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY_SIZE, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train([str(path) for path in sorted(sources.rglob("*.py"))[::4]], trainer)
    tokenizer.save(str(target))


def show(console: Console, rows: list[tuple[str, dict[str, Any], dict[str, Any]]]) -> bool:
    """Prints the table; returns whether every job's samples equal those made without the cache."""
    table = Table(
        title=f"what each job did with {rows[0][1]['items']} files",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    table.add_column("job", no_wrap=True)
    for column in ("made\nhere", "made by\nthe other", "already\nthere", "ready\nafter", "cached", "same?"):
        table.add_column(column, justify="right", no_wrap=True)
    all_same = True
    for label, facts, plain in rows:
        is_same = facts["digest"] == plain["digest"]
        all_same &= is_same
        table.add_row(
            label,
            f"{facts['computed']:,}",
            f"{facts['waited']:,}",
            f"{facts['hit']:,}",
            f"{facts['ready_s']:.2f} s",
            f"{facts['bytes'] / 2**20:.1f} MiB",
            "yes" if is_same else "NO",
        )
    console.print(table)
    console.print("same? = to the bit the tensors of a job without the cache (BLAKE3 over all)")
    return all_same


def main() -> None:
    console = Console()
    with tempfile.TemporaryDirectory(prefix="prepcache-demo-") as folder:
        demo = Demo(Path(folder), console)
        count = copy_sources(demo.data)
        console.print(
            f"{count} source files of the standard library; training a vocabulary of {VOCABULARY_SIZE}"
        )
        train_vocabulary(demo.data, demo.vocabulary)
        try:
            is_right = show(console, run_jobs(demo))
        finally:
            subprocess.run(
                [sys.executable, "-m", "prepcached", "stop"],
                env=demo.environment(), stdout=subprocess.DEVNULL, check=False,
            )  # fmt: skip
    raise SystemExit(0 if is_right else 1)


def run_jobs(demo: Demo) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """The jobs, in the order of the table: (label, summary, summary of the same without the cache)."""
    plain = demo.run("without the cache", mode="off")
    demo.console.print("[bold]jobs 1 and 2, at once, nothing cached[/bold]")
    first, second = demo.start("job 1"), demo.start("job 2")
    rows = [
        ("1 cold, beside 2", demo.finish(*first), plain),
        ("2 cold, beside 1", demo.finish(*second), plain),
    ]
    rows.append(("3 warm", demo.run("job 3, warm"), plain))

    edited = sorted(demo.data.rglob("*.py"))[0]
    edited.write_text(edited.read_text() + "\n# one more line\n")
    after_edit = demo.run("job 4, one file edited")
    shorter = demo.run("job 5, max_tokens halved", max_tokens=MAX_TOKENS // 2)
    back = demo.run("job 6, max_tokens back", max_tokens=MAX_TOKENS)
    plain_edited = demo.run("without the cache, after the edit", mode="off")
    plain_shorter = demo.run("without the cache, halved", mode="off", max_tokens=MAX_TOKENS // 2)
    rows.append(("4 one file edited", after_edit, plain_edited))
    rows.append(("5 config changed", shorter, plain_shorter))
    rows.append(("6 config changed back", back, plain_edited))
    return rows


if __name__ == "__main__":
    main()
