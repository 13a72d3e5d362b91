"""Writes canonical.json and items.json: `python tests/golden/make_canonical.py`.

Run it only together with a raised version constant, or to pin more: what it writes is what every key is made
of, and a line that it changes is a key that has moved.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from prepcache.keys.encoding.encoder import Encoder  # noqa: E402
from support.golden_values import VALUES, item_digests  # noqa: E402

if __name__ == "__main__":
    vectors = {name: Encoder().encode(value).hex() for name, value in VALUES.items()}
    (HERE / "canonical.json").write_text(json.dumps(vectors, indent=1) + "\n")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        digests = item_digests(Path(folder))
        os.chdir("/")
    (HERE / "items.json").write_text(json.dumps(digests, indent=1) + "\n")
