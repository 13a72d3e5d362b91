"""Objects of libraries that keep their state in C, and tell all of it when they are asked.

    json.JSONDecoder().scan_once               what the decoder was made with
    rdkit's fingerprint generators             their settings, as they describe themselves
    lxml's elements and trees                  the document as it would be written, and the place in it
    what `ffi.dlopen` of cffi gives            the library's file, and what was declared of it
    shared memory of multiprocessing           its bytes, or elements; not the name, another in each run
    functions of Boost.Python (rdkit's)        the name under which their module has them
    tokenizers of Hugging Face's in Rust       their text, and a switch that neither it nor a pickle has

Invariants:
    1. One that may keep more than it tells is refused: `Unstable` is what errors from here become.
    2. No library is imported here: a value of a library's type means that it is loaded already.
"""

from __future__ import annotations

import sys
from typing import Any

from prepcache.keys.code.fleeting import Parts

_SCANNER = ("strict", "object_hook", "object_pairs_hook", "parse_float", "parse_int", "parse_constant")
_NODES = frozenset({"lxml.etree._Element", "lxml.etree._ElementTree", "lxml.html.HtmlElement"})
_DECLARED = ("encoding", "standalone", "xml_version")


def parts_asked_for(value: Any) -> Parts | None:
    """What an object of these kinds is made of; None for all else.

    Raises:
        ValueError: it does not tell all.
        AttributeError: another release of the library, which tells less.
    """
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name in _SHARED:
        return _shared(value)
    if name == "_json.Scanner":
        return [(part, getattr(value, part)) for part in _SCANNER]
    if kind.__module__ == "rdkit.Chem.rdFingerprintGenerator" and hasattr(kind, "GetOptions"):
        return _generator(value)
    if name == "cffi.api._make_ffi_library.<locals>.FFILibrary":
        return _library(kind)
    if name == "Boost.Python.function":
        return _function(value)
    if name == "tokenizers.Tokenizer":
        return [("text", value.to_str()), ("encode_special_tokens", value.encode_special_tokens)]
    if name in _NODES and not getattr(value, "__dict__", None):
        return _node(value)
    return None


_SHARED = (
    "multiprocessing.shared_memory.SharedMemory",
    "multiprocessing.shared_memory.ShareableList",
)


def _shared(value: Any) -> Parts:
    if not hasattr(value, "buf"):
        return [("elements", list(value))]
    if value.buf is None:
        raise ValueError("it is closed")
    return [("bytes", value.buf)]


_LIBRARY = "FFILibrary"


def _library(kind: Any) -> Parts:
    """It holds the functions that were asked for; the rest is bound to the methods of its class."""
    if kind.__name__ == _LIBRARY:
        raise ValueError("it is of no library with a name")
    names = kind.__dir__.__code__.co_freevars
    ffi = kind.__dir__.__closure__[names.index("ffi")].cell_contents
    declared = sorted(ffi._parser._declarations.items())
    packed = [(name, getattr(of, "packed", None)) for name, (of, _) in declared]
    opened = kind.__name__.removeprefix(f"{_LIBRARY}_")
    return [("library", opened), ("declared", list(ffi._cdefsources)), ("packed", packed)]


def _function(value: Any) -> Parts:
    module, name = str(value.__module__), str(value.__name__)
    if vars(sys.modules.get(module, sys)).get(name) is not value:
        raise ValueError("it is not what its module has under its name")
    return [("name", f"{module}.{name}")]


def _generator(value: Any) -> Parts:
    """The two descriptions complete each other; neither has the patterns that features are made of."""
    described, options = value.ToJSON(), value.GetOptions()
    if "FeatureAtomInv" in described:
        raise ValueError("a fingerprint generator does not tell the patterns of its features")
    named = [name for name in dir(options) if not name.startswith("_")]
    settings = [(name, getattr(options, name)) for name in named]
    return [("described", described), *((n, part) for n, part in settings if type(part) in (bool, int))]


def _node(value: Any) -> Parts:
    etree = sys.modules["lxml.etree"]
    is_tree = hasattr(value, "getroot")
    element = value.getroot() if is_tree else value
    if element is None:
        return [("document", None)]
    document = element.getroottree()
    declared = [(name, getattr(document.docinfo, name)) for name in _DECLARED]
    written = etree.tostring(document, encoding="utf-8")
    return [("document", written), ("at", document.getpath(element)), *declared]
