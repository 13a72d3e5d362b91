"""JSON answers that can always be written.

Invariants:
    1. Rendering never fails. File names that are not UTF-8 (lone surrogates) are escaped; numbers that JSON
       does not have, and what is nested too deeply, become null. One client's odd artifact or recipe must not
       break another client's listing.
"""

from __future__ import annotations

import json
import math
from typing import Any

from starlette.responses import Response

MAX_DEPTH = 100
"""Levels that are written of a value that Python cannot write completely."""


class JsonResponse(Response):
    """An answer in JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        try:
            text = json.dumps(content, allow_nan=False, separators=(",", ":"))
        except (ValueError, RecursionError):
            text = json.dumps(_plain(content, MAX_DEPTH), allow_nan=False, separators=(",", ":"))
        return text.encode("ascii")


def _plain(value: Any, depth: int) -> Any:
    if depth == 0 or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, dict):
        return {name: _plain(one, depth - 1) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one, depth - 1) for one in value]
    return value
