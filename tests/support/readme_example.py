"""Runs the README's first example twice with some Python, as somebody who has installed the package there.

    python -m support.readme_example PYTHON

The second run must preprocess nothing.
"""

import json
import subprocess
import sys

from support.pages import REPO, blocks, lay_sample_data
from support.sandbox import sandbox

TOLD = """
import json
report = ds.report()
print(json.dumps([report.computed, report.hit, prepcache.__file__]))
"""


def main(python: str) -> None:
    with sandbox() as box:
        lay_sample_data(box.folder)
        script = box.folder / "train.py"
        script.write_text(blocks(REPO / "README.md", "python")[0] + TOLD)
        seen = []
        for _ in range(2):
            done = subprocess.run([python, script], env=box.environ, cwd=box.folder, stdout=-1, check=True)
            computed, hit, file = json.loads(done.stdout.splitlines()[-1])
            assert not file.startswith(str(REPO / "client")), f"{file} is this checkout's"
            seen.append((computed, hit))
        assert seen == [(12, 0), (0, 12)], seen
        print(f"the README's example runs with {python}: 12 items computed, then 12 found")


if __name__ == "__main__":
    main(sys.argv[1])
