"""Secrets in a recipe: known by their names, counted, and kept nowhere."""
# ruff: noqa: E501

import functools
import json
from typing import Any

import pytest

from prepcache.keys import recipes
from prepcache.keys.code.values import is_secret
from prepcache.keys.recipes import recipe
from prepcache.protocol.explain import differences
from support.projects import Project, project_fixture  # noqa: F401


def f(x: Any, **config: Any) -> Any:
    return x


SECRETS = (
    "token hf_token HF_TOKEN api_key apiKey AWS_SECRET_ACCESS_KEY db-password auth passwords token2 DB_PWD"
)


@pytest.mark.parametrize("names", [SECRETS, "tokenizer tokens max_tokens pad_token author keys size"])
def test_secrets_are_known_by_whole_words_in_their_names(names):
    assert [name for name in names.split() if is_secret(name) is not (names is SECRETS)] == []


class Fetch:
    """A function that is an object, with a secret in it."""

    def __init__(self, password: str) -> None:
        self.password = password

    def __call__(self, x: Any) -> Any:
        return x


def test_what_a_function_is_given_counts_as_a_secret_too():
    """A digest of it would tell a guess from the secret."""
    for make in (Fetch, lambda secret: functools.partial(f, api_key=secret)):
        plain, one, other = (recipe(make(secret)) for secret in ("hunter2", "hunter2", "hunter3"))
        assert plain.digest == one.digest != other.digest
        assert one.parts == other.parts
        [told, *_] = differences(one.parts, other.parts)
        assert told.line.endswith("may have changed: it is secret") and "hunter" not in json.dumps(one.parts)
    first, second = (recipe(f, config={"open": functools.partial(f, api_key=n)}) for n in "12")
    assert first.parts == second.parts and first.digest != second.digest


URL = "postgresql://trainer:hunter7@db.example.org/corpus"
HIDDEN: dict[str, Any] = {
    "by its name": {"hf_token": "hunter2", "nested": {"password": "hunter3"}},
    "below one": {"credentials": {"user": "hunter2", "more": [{"value": "hunter3"}]}},
    "url": {"place": URL},
    "url as bytes": {"place": URL.encode()},
    "url in a list": {"place": [1, URL]},
    "url in a dict": {"place": {"store": {"url": URL}}},
    "url without a user": {"place": ("s3://:hunter8@bucket",)},
    "parameter of a url": {"place": "http://a/b?c=1&api_key=hunter9"},
    "option": {"place": ["--token", "hunter2"]},
    "option with =": {"place": ["-x", "--hf-token=hunter2"]},
    "pair": {"place": [("Authorization", "Bearer hunter2")]},
}


@pytest.mark.parametrize("given", HIDDEN.values(), ids=HIDDEN)
def test_a_secret_counts_and_is_not_kept(given):
    parts = recipe(f, config={**given, "open": "http://me@host:80/a", "size": 2}).parts
    assert "hunter" not in json.dumps(parts)
    assert "//me@host:80/a" in parts["config"]["open"]["text"] and parts["config"]["size"]["text"] == "2"
    other = eval(repr(given).replace("hunter", "HUNTER"))
    assert recipe(f, config=other).digest != recipe(f, config=given).digest


@pytest.mark.parametrize("name", ["DATABASE", "MY_API_KEY"])
def test_a_secret_variable_is_not_kept_readable(project, monkeypatch, name):
    project.write(prep=f"import os\ndef f(x): return os.environ[{name!r}]")
    monkeypatch.setenv(name, URL)
    before = project.recipe()
    assert "hunter" not in json.dumps(before.parts)
    monkeypatch.setenv(name, f"{URL}2")
    assert project.digest() != before.digest


def test_a_secret_in_a_global_or_an_object_is_not_readable(project):
    text = (
        "import dataclasses\nclass Base: pass\n@dataclasses.dataclass\nclass Login(Base):\n    password: str\n"
        "OPTIONS = {{'api_key': '{0}'}}\nLOGIN = Login('{0}')\ndef f(x, login): return OPTIONS, LOGIN"
    )

    def made(secret: str) -> recipes.Recipe:
        project.write(prep=text.format(secret))
        module = project.load()
        return recipe(module.f, config={"login": module.LOGIN}, code="function")

    one, other = made("hunter1"), made("hunter2")
    assert "hunter" not in json.dumps(one.parts)
    for table, label in (("values", "prep.OPTIONS"), ("attributes", "prep.LOGIN.password")):
        assert one.parts["code"][table][label] == {"digest": "secret", "text": "secret"}
    assert one.parts["config"]["login"]["text"] == "secret"
    assert one.digest != other.digest


@pytest.mark.parametrize(
    "given", [["--hf-token=tops3cret"], ["hub.token=tops3cret"], ["--size", "2", "--api-key", "tops3cret"]]
)
def test_a_secret_of_the_command_line_is_not_shown(project, monkeypatch, given):
    project.write(prep="import argparse\ndef f(x): return argparse.ArgumentParser().parse_args()")
    shown = []
    for argv in (given, ["--size", "tops3cret"]):
        monkeypatch.setattr("sys.argv", ["train.py", *argv])
        shown.append("tops3cret" in repr(project.recipe(code="function").parts))
    assert shown == [False, True]
