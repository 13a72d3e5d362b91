"""Sessions of onnxruntime: they keep what they run in C, and beside it from where they had it.

Invariants:
    1. A session counts by the bytes of its model and by its providers. One that was given more, options or
       weights in files of their own, which cannot be asked for, is refused.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from prepcache.keys.code.fleeting import Parts

_OTHER_FILE = b"\n\x08location\x12"
"""How an ONNX model says which file a tensor is in: field 1 is the key `location`, field 2 its value."""
_PIECE_BYTES = 1 << 20


def is_session(value: Any) -> bool:
    kind = type(value)
    return kind.__name__ == "InferenceSession" and kind.__module__.startswith("onnxruntime.")


def parts_of_session(value: Any) -> Parts:
    """The model and the providers of a session.

    Raises:
        ValueError: it was given what cannot be asked for.
        OSError: the model is not there any more.
        AttributeError: another onnxruntime than 1.32, of which this knows what it keeps.
    """
    if value._sess_options_initial is not None:
        raise ValueError("a session of onnxruntime does not tell the SessionOptions that it was given")
    model: Any = value._model_bytes
    if model is None:
        model = Path(os.fsdecode(value._model_path))
        has_others = _says(model, _OTHER_FILE)
    else:
        has_others = _OTHER_FILE in model
    if has_others:
        raise ValueError("the weights of this ONNX model are in files of their own, which it does not tell")
    return [("model", model), ("providers", value._providers), ("options", value._provider_options)]


def _says(path: Path, words: bytes) -> bool:
    """Whether a file holds some bytes. It is read, not mapped: one that shrinks would kill the job."""
    before = b""
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            if words in before + piece:
                return True
            before = piece[-len(words) :]
    return False
