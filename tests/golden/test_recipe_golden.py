"""Recipe digests do not move unless a version constant does."""

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from prepcache.keys import recipes
from support import golden_recipes

HERE = Path(__file__).parent
RAISE = "raise the version constant beside the input that changed, then run tests/golden/make_recipe.py"


@pytest.fixture(scope="module")
def kept() -> dict[str, Any]:
    return dict(json.loads((HERE / f"recipe_v{recipes.RECIPE_VERSION}.json").read_text()))


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return golden_recipes.made()


@pytest.fixture(scope="module")
def of_this_python(kept: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    if made["python"] != kept["python"]:
        pytest.skip(f"the vectors are of Python {kept['python']}: its byte code is in the digests")
    return made


def test_the_digests_are_those_that_were_pinned(kept, of_this_python):
    assert of_this_python["recipes"] == kept["recipes"], RAISE


def test_the_fingerprints_of_code_are_those_that_were_pinned(kept, of_this_python):
    assert of_this_python["fingerprints"] == kept["fingerprints"], RAISE


def test_what_distributions_count_by_is_what_was_pinned(kept, made):
    assert made["distributions"] == kept["distributions"], RAISE


def test_the_vectors_were_made_under_the_versions_of_now(kept):
    assert golden_recipes.versions() == kept["versions"], RAISE


def test_no_two_vectors_are_one(kept):
    assert len(set(kept["recipes"].values())) == len(golden_recipes.VECTORS)


@pytest.mark.parametrize("constant", ["RECIPE_VERSION", "ENCODING_VERSION", "ENVIRONMENT_VERSION"])
def test_every_version_constant_is_in_the_digest(constant):
    def f(x: object) -> object:
        return x

    before = recipes.recipe(f).digest
    with mock.patch.object(recipes, constant, 99):
        assert recipes.recipe(f).digest != before


@pytest.mark.parametrize(
    ("patched", "value"),
    [("PYTHON", "cpython 9.9"), ("default_dtype", lambda: "torch.float16")],
)
def test_python_and_the_default_dtype_are_in_the_digest(patched, value):
    def f(x: object) -> object:
        return x

    before = recipes.recipe(f).digest
    with mock.patch.object(recipes, patched, value):
        assert recipes.recipe(f).digest != before
