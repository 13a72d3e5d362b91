"""The documentation builds and is complete: settings, commands, endpoints, metrics and errors have a row."""

import importlib.util
import os
import re
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

import prepcache
from prepcache import errors
from prepcache.command.cli import app as client_command
from prepcache.errors import all_errors
from prepcache.protocol.inspection import SORTS
from prepcached import config as settings
from prepcached.cli import app as daemon_command
from support.pages import REPO, all_pages, blocks, lay_sample_data, words
from support.programs import python
from support.sandbox import sandbox
from support.serving import serving

README_WORDS = 1500
ARCHITECTURE_WORDS = 1000


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """The hook that writes the reference pages."""
    spec = importlib.util.spec_from_file_location("reference_pages", REPO / "docs" / "reference_pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_and_the_map_are_short():
    assert words(REPO / "README.md") <= README_WORDS
    assert words(REPO / "ARCHITECTURE.md") <= ARCHITECTURE_WORDS


def test_every_file_on_the_map_is_there():
    tree = (REPO / "ARCHITECTURE.md").read_text().split("```")[1]
    names = {path.name for path in (REPO / "client").rglob("*.py")}
    names |= {path.name for path in (REPO / "server").rglob("*.py")}
    for name in re.findall(r"(?<!\*)\b(\w+\.py)\b", tree):
        assert name in names, name


def test_the_map_says_how_large_folders_are():
    """To the nearest hundred when it was written; to an eighth ever since."""
    tree = (REPO / "ARCHITECTURE.md").read_text().split("```")[1]
    folders = {path.name: path for top in ("client", "server") for path in (REPO / top).rglob("*")}
    told = re.findall(r"^ *(?:\w+/)*(\w+)/  ([\d,]+) ", tree, re.MULTILINE)
    assert len(told) == 12
    for name, number in told:
        lines = sum(len(path.read_text().splitlines()) for path in folders[name].rglob("*.py"))
        assert int(number.replace(",", "")) == pytest.approx(lines, rel=1 / 8), f"{name}/ has {lines} lines"


def test_the_site_builds_without_a_warning(tmp_path):
    """Strict: a broken link, a missing page or an unreadable docstring ends it."""
    environ = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    build = ("-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site")
    python(*build, cwd=REPO, env=environ)
    page = (tmp_path / "site" / "tutorial.html").read_text()
    assert not re.findall(r'(?:src|href)="https?://(?!www\.w3\.org)[^"]*\.(?:js|css|woff2?)"', page)


def test_every_error_has_its_row(reference):
    page = reference.errors_page()
    for error in errors.all_errors():
        assert f"| `{error.code}` | `{error.__name__}` | {error.status} | {error.exit_code} |" in page


@pytest.mark.parametrize("name", sorted(settings.KNOWN))
def test_every_setting_has_its_row(name, reference):
    row = f"| `--{name.replace('_', '-')}` | `{settings.PREFIX}{name.upper()}` | `{name}` |"
    assert row in reference.settings_page()


def test_every_variable_that_a_job_reads_has_its_row(reference):
    sources = [path.read_text() for path in (REPO / "client").rglob("*.py")]
    read = {name for text in sources for name in re.findall(r'"(PREPCACHE(?:_[A-Z]+)?)"', text)}
    assert read >= {"PREPCACHE", "PREPCACHE_URL", "PREPCACHE_TOKEN", "PREPCACHE_DIR"}
    for name in read:
        assert f"| `{name}` |" in reference.settings_page()


def test_every_command_has_its_section(reference):
    page = reference.commands_page()
    for program, app in (("prepcache", client_command), ("prepcached", daemon_command)):
        for name, command in reference.all_commands(app).items():
            assert f"### {program} {name}\n" in page
            assert "Example:" in (command.help or ""), f"{program} {name} shows an example in its help"


def test_the_readme_names_the_commands_that_exist():
    text = (REPO / "README.md").read_text()
    for program, app in (("prepcache", client_command), ("prepcached", daemon_command)):
        group: Any = typer.main.get_command(app)
        assert set(re.findall(rf"`{program} (\w+)", text)) <= set(group.commands)


def test_endpoints_and_metrics_have_their_pages(reference):
    endpoints = reference.http_page()
    for row in ("`GET /healthz`", "`POST /v1/resolve`", "`DELETE /v1/entries/{key}/pin`", "`POST /v1/purge`"):
        assert f"| {row} | " in endpoints
    assert re.search(
        r"^\| `prepcache_evictions(_total)?` \| counter \| \w", reference.metrics_page(), re.MULTILINE
    )


def test_what_entries_are_sorted_by_has_one_name_everywhere(tmp_path):
    with serving(tmp_path) as served:
        schema = served.http().get("/openapi.json").json()
    [sort] = [one for one in schema["paths"]["/v1/entries"]["get"]["parameters"] if one["name"] == "sort"]
    group: Any = typer.main.get_command(client_command)
    [option] = [one for one in group.commands["ls"].params if one.name == "sort"]
    assert option.metavar.split("|") == list(SORTS)
    entry = schema["components"]["schemas"]["Entry"]["properties"]
    assert all(name in entry and name in sort["description"] for name in SORTS)


def test_every_public_name_is_in_the_reference():
    page = (REPO / "docs" / "reference" / "python.md").read_text()
    names = {name for name in prepcache.__all__ if not name.startswith("_")}
    names -= {error.__name__ for error in errors.all_errors()} | {"errors"}
    for name in names:
        about = (getattr(prepcache, name).__doc__ or "").strip().splitlines()[0]
        assert f"| `{name}` | {about} |\n" in page, "a clone shows the table"
        assert f"::: prepcache.{name}\n" in page or name == "Recipe"


def anchors(page: Path) -> set[str]:
    """What a renderer makes of a page's headings."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_links_within_the_project_lead_somewhere():
    """Also where nothing is built, as in a clone: MkDocs writes some pages of the reference."""
    for page in all_pages():
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)]*)\)", page.read_text()):
            if target.startswith("http"):
                continue
            there = page.parent / target if target else page
            assert there.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors(there), f"{page.name}: {target}#{anchor}"


def test_every_endpoint_is_described(tmp_path):
    with serving(tmp_path) as served:
        document, page = served.http().get("/openapi.json").json(), served.http().get("/docs").text
    assert "<script" not in page and "://" not in page, "the page loads nothing from elsewhere"
    schemas, in_paths = document["components"]["schemas"], set()
    promised = {
        "GET /healthz", "GET /metrics", "GET /v1/info", "GET /v1/stats", "POST /v1/sessions",
        "GET /v1/sessions",
        "POST /v1/sessions/{session_id}/beat", "DELETE /v1/sessions/{session_id}", "POST /v1/resolve",
        "POST /v1/leases", "POST /v1/leases/{lease_id}/commit", "DELETE /v1/leases/{lease_id}",
        "PUT /v1/leases/{lease_id}/data", "GET /v1/entries", "GET /v1/entries/{key}",
        "GET /v1/entries/{key}/data", "HEAD /v1/entries/{key}/data", "GET /v1/recipes",
        "GET /v1/recipes/{digest}", "DELETE /v1/entries/{key}", "POST /v1/purge", "PUT /v1/entries/{key}/pin",
        "DELETE /v1/entries/{key}/pin", "POST /v1/verify",
    }  # fmt: skip
    told = {f"{method.upper()} {path}" for path, ways in document["paths"].items() for method in ways}
    assert promised <= told and {"ResolveRequest", "LeaseAnswer", "EntryPage", "Problem"} <= set(schemas)
    assert set(schemas["Problem"]["properties"]["code"]["enum"]) == {one.code for one in all_errors()}
    for path, methods in document["paths"].items():
        assert path in page
        for way in methods.values():
            assert way["description"]
            [refused] = way["responses"]["default"]["content"].values()
            assert refused["schema"] == {"$ref": "#/components/schemas/Problem"}
            bodies = [way.get("requestBody", {}), *way["responses"].values()]
            for schema in (one["schema"] for body in bodies for one in body.get("content", {}).values()):
                assert "$ref" not in schema or schema["$ref"].rpartition("/")[2] in schemas
            here = [one for one in way.get("parameters", ()) if one["in"] == "path"]
            in_paths |= {(one["name"], one["schema"].get("pattern")) for one in here}
    hex64, token = "^[0-9a-f]{64}$", "^[A-Za-z0-9_-]{1,128}$"
    assert in_paths == {("key", hex64), ("digest", hex64), ("session_id", token), ("lease_id", token)}


_PROGRAMS = {"prepcache": client_command, "prepcached": daemon_command}


def test_python_of_the_pages_runs(tmp_path):
    """Each page is one module, so that its later blocks may use the names of its earlier ones."""
    lay_sample_data(tmp_path)
    modules = []
    for page in all_pages():
        if code := blocks(page, "python"):
            name = "page_" + re.sub(r"\W", "_", str(page.relative_to(REPO).with_suffix("")))
            (tmp_path / f"{name}.py").write_text("\n".join(code))
            modules.append(name)
    assert len(modules) > 8
    driver = tmp_path / "run_pages.py"
    driver.write_text(
        "import importlib, sys, torch\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
    )
    with sandbox() as box:
        box.python(driver, *modules, cwd=tmp_path)


def commands() -> list[str]:
    """Every line of a shell block that calls one of our two programs."""
    found = []
    for page in all_pages():
        for block in blocks(page, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                calls = [at for at, word in enumerate(words[:-1]) if os.path.basename(word) in _PROGRAMS]
                if calls and (calls[-1] == 0 or words[0] == "sudo"):
                    found.append(shlex.join([os.path.basename(words[calls[-1]]), *words[calls[-1] + 1 :]]))
    return sorted(set(found))


def test_commands_of_the_pages_have_those_options():
    found = commands()
    assert len(found) > 10
    for line in found:
        program, *arguments = shlex.split(line)
        command: Any = typer.main.get_command(_PROGRAMS[program])
        while hasattr(command, "commands"):
            name, *arguments = arguments
            command = command.commands[name]
        command.make_context(name, arguments)
