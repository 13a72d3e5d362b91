"""Golden vectors of the canonical encoding and of item digests."""

import json
import pathlib

from prepcache.digests import RecipeDigest, entry_key
from prepcache.keys.encoding.encoder import Encoder
from support.golden_values import VALUES, item_digests

HERE = pathlib.Path(__file__).parent
VECTORS = json.loads((HERE / "canonical.json").read_text())
"""Name -> hex of the encoding. A change here changes every key: raise `ENCODING_VERSION` with it."""


def test_the_bytes_of_a_value_are_those_of_the_version():
    assert {name: Encoder().encode(value).hex() for name, value in VALUES.items()} == VECTORS


def test_no_two_vectors_are_equal():
    assert len(set(VECTORS.values())) == len(VECTORS)


def test_the_key_of_an_entry_is_pinned():
    """Raise the number in `KEY_DOMAIN` with a change."""
    key = entry_key(RecipeDigest("ab" * 32), bytes(range(64)))
    assert key == "7603bcaac67be762bfccfce399fe1975aad4d3639c125287c10a8385e712f8f9"


def test_the_digests_of_items_are_pinned(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert item_digests(tmp_path) == json.loads((HERE / "items.json").read_text())
