"""The daemon's settings: who wins, and what is refused with which mend."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from prepcache.errors import ConfigError
from prepcached import cli
from prepcached.config import KNOWN, load, size_bytes

TOKEN = "correct-horse-battery-staple"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o600)
    return path


def toml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "prepcached.toml"
    path.write_text(text)
    return path


def test_the_command_line_wins_over_environment_and_file(tmp_path):
    config = toml(tmp_path, 'root = "/file"\nuds = "/file.sock"\nlog_level = "debug"\n')
    environ = {"PREPCACHED_ROOT": "/environ", "PREPCACHED_UDS": "/environ.sock"}
    found = load({"root": "/option", "uds": None}, environ | {"PREPCACHED_CONFIG": str(config)})
    assert (found.root, found.uds, found.log_level) == (Path("/option"), Path("/environ.sock"), "debug")
    assert found.max_bytes is None and found.idle_exit is None


def test_every_setting_can_be_given_in_every_place(tmp_path, token_file):
    given: dict[str, Any] = {
        "root": "/r", "uds": "/s", "host": "127.0.0.1", "port": 80, "token_file": str(token_file),
        "group": "0", "max_bytes": "1GiB", "min_free": "1MB", "admins": "0,1", "allowed_hosts": "a,b",
        "isolation": "user", "trusted": "2,3", "idle_exit": 2.5, "log_level": "error",
        "log_format": "json", "metrics_listen": "[::1]:9109", "tier": "s3://bucket/prefix",
        "user_quota": "5MB", "quotas": "0=1GiB,7=2GiB",
    }  # fmt: skip
    assert set(given) == set(KNOWN)
    by_option = load(given, {})
    by_environ = load({}, {"PREPCACHED_" + name.upper(): str(value) for name, value in given.items()})
    text = "".join(f"{name} = {value!r}\n" for name, value in given.items())
    by_file = load({}, {}, toml(tmp_path, text))
    assert by_option == by_environ == by_file
    assert (by_file.max_bytes, by_file.min_free, by_file.token) == (1 << 30, 10**6, TOKEN)
    assert (by_file.admins, by_file.allowed_hosts, by_file.group) == ((0, 1), ("a", "b"), 0)
    assert (by_file.user_quota, by_file.quotas) == (5 * 10**6, {0: 1 << 30, 7: 2 << 30})
    assert (by_file.isolation, by_file.trusted) == ("user", (2, 3))
    assert TOKEN not in repr(by_file)


def test_the_users_own_root_and_socket_are_the_default():
    found = load({}, {"HOME": "/home/x"})
    assert found.root == Path("/home/x/.cache/prepcache") and found.uds == found.root / "prepcached.sock"
    found = load({}, {"XDG_CACHE_HOME": "/c", "XDG_RUNTIME_DIR": "/run/user/1"})
    assert found.root == Path("/c/prepcache") and found.uds == Path("/c/prepcache/prepcached.sock")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4096", 4096), ("1k", 1024), ("1KB", 1000), ("1KiB", 1024), ("1.5 GiB", 3 << 29), ("200GiB", 200 << 30),
     ("2T", 2 << 40), (7, 7)],
)  # fmt: skip
def test_sizes_are_read(text, expected):
    assert size_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "x", "-1", "1XB", "1 2", -1, True, 1.5, None, "1e9"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="a size"):
        size_bytes(text)


@pytest.mark.parametrize(("options", "told"), [
    ({"host": "0.0.0.0"}, "give both --host and --port"), ({"port": 80}, "give both --host and --port"),
    ({"host": "0.0.0.0", "port": 80}, "--token-file"), ({"uds": ""}, "nothing to listen on"),
    ({"uds": "/" + "x" * 107}, "--uds a shorter one"), ({"max_bytes": "1KiB"}, "too small"),
    ({"max_bytes": "lots"}, "--max-bytes = 'lots'"), ({"max_bytes": "9" * 400}, "must be a size, such as"),
    ({"port": "99999", "host": "x"}, "less than or equal to 65535"),
    ({"port": "abc"}, "--port = 'abc': Input should be a valid integer"),
    ({"idle_exit": 0}, "greater than 0"),
    ({"idle_exit": "soon"}, "--idle-exit = 'soon': Input should be a valid number"),
    ({"log_level": "loud"}, "'debug', 'info', 'warning' or 'error'"),
    ({"group": "no-such-group-here"}, "groupadd"), ({"group": ""}, "leave it out"),
    ({"group": str(2**32 - 1)}, "an existing group"), ({"root": ""}, "--root = '': must be a path"),
    ({"roott": "/x"}, "--roott: there is no such setting"), ({"root": " "}, "leave it out for the default"),
    ({"admins": "no-such-user-here"}, "no user"), ({"token_file": "/nonexistent/token"}, "cannot be read"),
    ({"metrics_listen": "9109"}, "must be HOST:PORT"),
    ({"trusted": "0"}, 'works only with isolation = "user"'),
])  # fmt: skip
def test_what_cannot_work_is_refused_with_the_mend(options, told):
    with pytest.raises(ConfigError) as caught:
        load(options, {"HOME": "/home/x"})
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b'root = "/caf\xe9"', r"prepcached\.toml"),
        (b'root = "/a\\u0000b"', r"prepcached\.toml"),
        (b"root = ", r"prepcached\.toml.*is not TOML"),
        (b"max_byte = 1\n", r"prepcached.toml: max_byte: there is no such setting; did you mean max_bytes"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path, text, told):
    config = tmp_path / "prepcached.toml"
    if text is not None:
        config.write_bytes(text)
    with pytest.raises(ConfigError, match=told):
        load({}, {}, config)


def test_a_variable_that_is_no_setting_is_refused():
    with pytest.raises(ConfigError, match=r"PREPCACHED_MAX_BYTE: there .* did you mean max_bytes"):
        load({}, {"PREPCACHED_MAX_BYTE": "1"})


@pytest.mark.parametrize(
    ("text", "mode", "told"),
    [
        ("short", 0o600, "16 or more"),
        ("with some spaces in it", 0o600, "16 or more"),
        ("ünprintable-and-long", 0o600, "16 or more ASCII"),
        (TOKEN, 0o644, "chmod 600"),
    ],
)
def test_a_poor_or_open_token_is_refused_and_not_shown(token_file, text, mode, told):
    token_file.write_text(text)
    token_file.chmod(mode)
    with pytest.raises(ConfigError, match=told) as caught:
        load({"token_file": str(token_file)}, {"HOME": "/"})
    assert text not in str(caught.value)


def test_a_socket_from_systemd_needs_no_other():
    assert load({}, {"HOME": "/"}, activated=True).uds is None
    assert load({"uds": "/s"}, {"HOME": "/"}, activated=True).uds == Path("/s")


def test_an_empty_path_on_the_command_line_means_no_unix_socket(tmp_path, token_file):
    refused = CliRunner().invoke(cli.app, ["check", "--root", ""]).exception
    assert isinstance(refused, ConfigError), "and no root is the working directory"
    given = ["--root", str(tmp_path), "--host", "::1", "--port", "1", "--token-file", str(token_file)]
    for text, uds in (("", None), ("s", str(Path.cwd() / "s"))):
        checked = CliRunner().invoke(cli.app, ["serve", "--check-config", "--uds", text, *given])
        assert json.loads(checked.stdout)["uds"] == uds


def test_settings_are_checked_without_a_start(tmp_path, token_file):
    config = toml(tmp_path, f'root = "{tmp_path}/root"\ntoken_file = "{token_file}"\nmax_bytes = "1GiB"\n')
    checked = CliRunner().invoke(cli.app, ["serve", "--config", str(config), "--check-config"])
    told = json.loads(checked.stdout)
    assert (checked.exit_code, told["max_bytes"], told["root"]) == (0, 1 << 30, f"{tmp_path}/root")
    assert TOKEN not in checked.stdout and not (tmp_path / "root").exists()
    wrong = CliRunner().invoke(cli.app, ["serve", "--check-config", "--max-bytes", "lots"])
    assert isinstance(wrong.exception, ConfigError)
