"""The README is true: every setting, command, endpoint and error is in it, and nothing that is not there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

import prepcache
from prepcache import errors
from prepcache.command.cli import app as client_command
from prepcache.protocol.sorts import SORTS
from prepcached import settings
from prepcached.cli import app as daemon_command
from support.serving import serving

REPO = Path(__file__).resolve().parents[2]
README = (REPO / "README.md").read_text()


@pytest.fixture
def schema(tmp_path: Path) -> dict[str, Any]:
    """The OpenAPI document of a daemon that runs."""
    with serving(tmp_path) as served:
        return dict(served.http().get("/openapi.json").json())


def section(title: str) -> str:
    """The text of a section, without its subsections' siblings."""
    return README.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def error_table() -> str:
    """What the README's table of errors must be, from the classes themselves."""
    lines = ["| code | HTTP | exit code | try again | means |", "|---|---|---|---|---|"]
    for cls in errors.all_errors():
        means = (cls.__doc__ or "").split("\n")[0].rstrip(".")
        again = "yes" if cls.is_retryable else ""
        lines.append(f"| `{cls.code}` | {cls.status} | {cls.exit_code} | {again} | {means} |")
    return "\n".join(lines)


def test_the_error_table_is_that_of_the_classes() -> None:
    assert error_table() in README, f"put this into the README:\n{error_table()}"


@pytest.mark.parametrize("name", sorted(settings.KNOWN))
def test_every_setting_of_the_daemon_is_in_the_table(name: str) -> None:
    text = section("Settings")
    for form in (f"`--{name.replace('_', '-')}`", f"`{settings.PREFIX}{name.upper()}`", f"`{name}`"):
        assert form in text


def test_every_variable_that_the_client_reads_is_in_the_table() -> None:
    sources = [path.read_text() for path in (REPO / "client").rglob("*.py")]
    read = {name for text in sources for name in re.findall(r'"(PREPCACHE(?:_[A-Z]+)?)"', text)}
    assert read >= {"PREPCACHE", "PREPCACHE_URL", "PREPCACHE_TOKEN", "PREPCACHE_DIR"}
    for name in read:
        assert f"`{name}`" in section("Settings")


@pytest.mark.parametrize(("program", "app"), [("prepcache", client_command), ("prepcached", daemon_command)])
def test_commands_and_table_agree(program: str, app: typer.Typer) -> None:
    group: Any = typer.main.get_command(app)
    told = set(re.findall(rf"`{program} (\w+)", section("Commands")))
    assert told == set(group.commands)


def test_every_command_shows_an_example_in_its_help() -> None:
    for app in (client_command, daemon_command):
        group: Any = typer.main.get_command(app)
        for name, command in group.commands.items():
            assert "Example:" in (command.help or "") + (command.epilog or ""), name


def test_endpoints_and_table_agree(schema: dict[str, Any]) -> None:
    served = {
        f"{method.upper()} {path}"
        for path, methods in schema["paths"].items()
        for method in methods
        if method in ("get", "post", "put", "delete")
    }
    told = set(re.findall(r"^\| `((?:GET|POST|PUT|DELETE) [^`]+)`", section("HTTP"), flags=re.MULTILINE))
    assert {re.sub(r"{\w+}", "{}", row) for row in told} - {"GET /", "GET /docs"} == {
        re.sub(r"{\w+}", "{}", row) for row in served
    }


def test_what_entries_are_sorted_by_has_one_name_everywhere(schema: dict[str, Any]) -> None:
    [sort] = [one for one in schema["paths"]["/v1/entries"]["get"]["parameters"] if one["name"] == "sort"]
    group: Any = typer.main.get_command(client_command)
    [option] = [one for one in group.commands["ls"].params if one.name == "sort"]
    assert option.metavar.split("|") == list(SORTS)
    entry = schema["components"]["schemas"]["Entry"]["properties"]
    for name in SORTS:
        assert name in entry and name in sort["description"] and f"`{name}`" in section("Commands")


def test_every_public_name_is_in_the_readme() -> None:
    """Errors are in a table of their own."""
    names = {name for name in prepcache.__all__ if not name.startswith("_")}
    names -= {error.__name__ for error in errors.all_errors()}
    for name in names - {"Recipe"}:
        assert f"prepcache.{name}" in README, name


def anchors(page: Path) -> set[str]:
    """What GitHub makes of a page's headings."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_links_within_the_project_lead_somewhere() -> None:
    pages = [REPO / "README.md", REPO / "ARCHITECTURE.md", REPO / "deploy" / "README.md"]
    pages += sorted((REPO / "docs").glob("*.md"))
    assert len(pages) > 3
    for page in pages:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)]*)\)", page.read_text()):
            if not target.startswith("http"):
                there = page.parent / target if target else page
                assert there.exists(), f"{page.name}: {target}"
                assert not anchor or anchor in anchors(there), f"{page.name}: {target}#{anchor}"
