"""JSON answers, whatever they hold.

Invariants:
    1. Rendering never fails: file names that are no UTF-8 (lone surrogates) are escaped, numbers that JSON
       does not have become null. One client's odd artifact must not break another's listing.
"""

from __future__ import annotations

import json
import math
from typing import Any

from starlette.responses import Response


class Json(Response):
    """An answer in JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        try:
            text = json.dumps(content, allow_nan=False, separators=(",", ":"))
        except ValueError:
            text = json.dumps(_finite(content), allow_nan=False, separators=(",", ":"))
        return text.encode("ascii")


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return value
