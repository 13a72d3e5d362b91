"""Writes recipe_v<version>.json: `python tests/golden/make_recipe.py`.

Run it only together with a raised version constant, or to pin more: what it writes is what every recipe is
made of, and a line that it changes is a recipe that has moved.
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from prepcache.keys import recipes  # noqa: E402
from support import golden_recipes  # noqa: E402

if __name__ == "__main__":
    path = HERE / f"recipe_v{recipes.RECIPE_VERSION}.json"
    path.write_text(json.dumps(golden_recipes.made(), indent=1) + "\n")
