"""The key corpus, run against other caches: stale samples and needless misses, side by side.

    python -m benchmarks.keys [--peers PYTHON]

PYTHON is an interpreter that has the other caches and torch (`make peers` makes one). A case counts as a
stale sample if its key had to change and did not, as a needless miss if its key had to stay and did not.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.key_peers import KEYERS

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests" / "contract"))

from key_corpus import CASES  # noqa: E402 (the corpus is among the tests)
from key_corpus.run import OWN, Keyer, Verdict, run  # noqa: E402


def rows(name: str, verdicts: Sequence[Verdict]) -> list[str]:
    """Lines of the table, one for each mode."""
    lines = []
    for mode in dict.fromkeys(verdict.mode for verdict in verdicts):
        mine = [verdict for verdict in verdicts if verdict.mode == mode]
        must_change = [v for v in mine if "function" in v.case.changes]
        must_stay = [v for v in mine if "function" not in v.case.changes]
        wrong = sum(v.is_changed is False for v in must_change)
        needless = sum(v.is_changed is True for v in must_stay)
        refused = sum(v.is_changed is None for v in mine)
        label = f'{name}, `code="{mode}"`' if name == "prepcache" else name
        lines.append(
            f"| {label} | {wrong} of {len(must_change)} | {needless} of {len(must_stay)} | {refused} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path, default=REPO / ".venv-peers" / "bin" / "python")
    arguments = parser.parse_args()
    if not arguments.peers.exists():
        parser.error(f"{arguments.peers} is not there: `make peers` installs the other caches")
    print("| cache | stale samples | needless misses | refused |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        print("\n".join(rows("prepcache", run(CASES, Path(folder), OWN))), flush=True)
    for name, (maker, mode) in KEYERS.items():
        keyer = Keyer(
            f"benchmarks.key_peers:{maker}",
            (mode,),
            str(arguments.peers.absolute()),
            (str(REPO), str(REPO / "client")),
        )
        with tempfile.TemporaryDirectory() as folder:
            print("\n".join(rows(name, run(CASES, Path(folder), keyer))), flush=True)


if __name__ == "__main__":
    main()
