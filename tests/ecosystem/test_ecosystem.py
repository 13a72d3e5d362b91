"""Each ecosystem example with the real library: uncached, cold and warm runs train on the same tensors.

Examples whose libraries are not installed skip; `make nightly` installs them all.
"""

import importlib.util
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.pages import REPO, lay_sample_data
from support.sandbox import Sandbox, sandbox

EXAMPLES = REPO / "examples" / "ecosystem"


@dataclass(frozen=True)
class Example:
    """One example, the modules that it imports, and how many samples a cold run computes."""

    name: str
    needs: tuple[str, ...]
    computed: int

    def skip_unless_installed(self) -> None:
        for module in self.needs:
            if importlib.util.find_spec(module) is None:
                pytest.skip(f"{module} is not installed: make nightly installs it")


QUICK = [
    Example("stateful_data_loader", ("torchdata",), 12),
    Example("webdataset_stream", ("webdataset",), 12),
    Example("arrays_in_files", ("h5py", "zarr"), 24),
    Example("torchrun_ddp", ("torch",), 12),
    Example("transforms_v2", ("PIL",), 12),
]
LONG = [
    Example("lightning_data_module", ("lightning",), 12),
    Example("lightning_ddp", ("lightning",), 12),
    Example("accelerate_loop", ("accelerate",), 12),
    Example("hugging_face_trainer", ("transformers", "datasets"), 12),
    Example("monai_volumes", ("monai", "nibabel"), 4),
    Example("albumentations_images", ("albumentations",), 12),
    Example("torch_geometric_graphs", ("torch_geometric",), 12),
    Example("audio_cuts", ("soundfile",), 12),
    Example("tables", ("pandas", "polars", "pyarrow"), 15),
    Example("hydra_multirun", ("hydra",), 24),
    Example("optuna_sweep", ("optuna",), 24),
    Example("mindspore_generator", ("mindspore",), 12),
]


def run(box: Sandbox, example: Example, folder: Path, mode: str) -> dict[str, Any]:
    """What the example printed; a warning of anybody's fails the test."""
    done = box.python(
        Path(__file__).with_name("run_example.py"),
        EXAMPLES / f"{example.name}.py",
        environ={"PREPCACHE": mode, "TOKENIZERS_PARALLELISM": "false"},
        cwd=folder,
    )
    assert not [line for line in done.stderr.splitlines() if re.search("warning", line, re.IGNORECASE)]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def check(example: Example, folder: Path) -> None:
    example.skip_unless_installed()
    lay_sample_data(folder)
    with sandbox() as box:
        box.start_daemon()  # what a job makes while its daemon starts is not counted here
        uncached = run(box, example, folder, "off")
        cold = run(box, example, folder, "on")
        warm = run(box, example, folder, "on")
    assert uncached["tensors"] > 0
    assert cold["digest"] == warm["digest"] == uncached["digest"]
    assert (cold["computed"], warm["computed"]) == (example.computed, 0)


@pytest.mark.nightly(daily=["arrays_in_files"])
@pytest.mark.parametrize("example", QUICK, ids=lambda example: example.name)
def test_an_example_trains_on_the_same_tensors(example, tmp_path):
    check(example, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("example", LONG, ids=lambda example: example.name)
def test_a_long_example_trains_on_the_same_tensors(example, tmp_path):
    check(example, tmp_path)


def test_the_table_of_libraries_names_the_tested_versions():
    table = (REPO / "docs" / "how-to" / "other-libraries.md").read_text()
    for line in (EXAMPLES / "requirements.txt").read_text().splitlines():
        name, _, version = line.partition("==")
        if version and name not in ("ipykernel", "nbformat"):
            assert f"{name} {version}" in table


def test_every_example_is_on_a_page_and_tested():
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == {example.name for example in QUICK + LONG} | {"executors"}  # test_executors.py
    pages = "".join(page.read_text() for page in (REPO / "docs" / "how-to").glob("*.md"))
    for name in names:
        assert f"examples/ecosystem/{name}.py" in pages


def test_a_notebook_hits_unless_a_function_was_edited(tmp_path):
    """Cells that are run again, an edited cell, and a module edited under %autoreload; a bar below a cell."""
    runner = tmp_path / "run_notebook.py"
    runner.write_text(
        "import json, sys, nbclient, nbformat  # the notebook uses torch\n"
        "book = nbformat.read(sys.argv[1], as_version=4)\n"
        "quick = 'import prepcache.progress as p; p.QUIET_S = p.REDRAW_S = 0'\n"
        "slow = 'ds = prepcache.CachedDataset(range(51, 60), square); print(len(ds))'\n"
        "book.cells += [nbformat.v4.new_code_cell(cell) for cell in (quick, slow)]\n"
        "limits = {'timeout': 250, 'startup_timeout': 250}\n"
        "nbclient.NotebookClient(book, kernel_name='python3', **limits).execute(cwd='.')\n"
        "for cell in book.cells:\n"
        "    told = [one['text'] for one in cell.get('outputs', ()) if one.get('name') == 'stdout']\n"
        "    if any(told):\n"
        "        print(''.join(told).strip())\n"
        "print(json.dumps(book.cells[-1].outputs))\n"
    )
    with sandbox() as box:
        box.start_daemon()  # what a job makes while its daemon starts is not counted here
        done = box.python(runner, EXAMPLES / "notebook.ipynb", cwd=tmp_path)
    *told, last = done.stdout.splitlines()
    assert told == ["50 0", "0 50", "50 0 [3, 10]", "50 0 [6]", "50 0 [7]", "9"]
    said = "".join(one["text"] for one in json.loads(last) if one.get("name") == "stderr")
    assert "[========] 9 of 9 items" in said.splitlines()[-1]
