"""The client's settings: what may stand in the environment, and where a daemon is looked for."""

import os
import socket
from pathlib import Path

import pytest

from prepcache.daemon import launcher
from prepcache.errors import ConfigError
from prepcache.keys.files.stat_cache import user_stat_cache
from prepcache.protocol import places
from prepcache.settings import Address, Mode, Settings

LONG = "/" + "d" * 120


@pytest.mark.parametrize("mode", Mode)
def test_each_mode_is_known_by_its_name(mode):
    assert Settings.from_environ({"PREPCACHE": mode.value.upper() + " "}).mode is mode


def test_an_empty_environment_is_on_and_looks_for_a_daemon():
    for environ in ({}, {"PREPCACHE": "", "PREPCACHE_URL": "", "PREPCACHE_TOKEN": "", "PREPCACHE_DIR": ""}):
        assert Settings.from_environ(environ) == Settings(Mode.ON, None, None, None)


@pytest.mark.parametrize("said", ["yes", "0", "read-only", "false"])
def test_a_mode_that_means_nothing_is_refused_with_those_that_do(said):
    with pytest.raises(ConfigError, match="on, off, readonly, refresh"):
        Settings.from_environ({"PREPCACHE": said})


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("unix:///run/x.sock", Address(socket="/run/x.sock")),
        ("http://host:8080", Address(host="host", port=8080)),
        ("http://host:8080/", Address(host="host", port=8080)),
        ("http://host", Address(host="host", port=80)),
        ("http://[::1]:81", Address(host="::1", port=81)),
    ],
)
def test_a_url_names_a_socket_or_a_port(url, address):
    assert Address.parse(url) == address
    assert Address.parse(address.url) == address


@pytest.mark.parametrize(
    "url",
    [
        *("", "/run/x.sock", "unix:", "unix://", "unix:///", "unix://relative/x", "unix://" + LONG),
        *("https://host", "ftp://host", "http://", "http://host:port", "http://host:99999", "http://[::1"),
        *("http://host/path", "http://u:p@host", "http://h?q"),
    ],
)
def test_another_url_is_refused_with_the_two_forms(url):
    with pytest.raises(ConfigError, match="PREPCACHE_URL must be unix:///path/to/socket or http://host:port"):
        Address.parse(url)


@pytest.mark.parametrize("token", ["two words", "line\nbreak", "ümlaut", " "])
def test_a_token_that_no_header_can_carry_is_refused(token):
    with pytest.raises(ConfigError, match="PREPCACHE_TOKEN"):
        Settings.from_environ({"PREPCACHE_TOKEN": token})


def test_the_token_may_be_in_a_file(tmp_path):
    path = tmp_path / "token"
    path.write_text("of-the-file\n")
    of_file = {"PREPCACHE_TOKEN_FILE": str(path)}
    assert Settings.from_environ(of_file).token == "of-the-file"
    assert Settings.from_environ({**of_file, "PREPCACHE_TOKEN": "said"}).token == "said"
    with pytest.raises(ConfigError, match=r"PREPCACHE_TOKEN_FILE: .* cannot be read"):
        Settings.from_environ({"PREPCACHE_TOKEN_FILE": str(tmp_path / "none")})


def test_the_users_root_may_be_chosen_and_his_socket_with_it(monkeypatch):
    monkeypatch.setattr(launcher, "SYSTEM_SOCKET", Path("/nowhere"))
    environ = {"HOME": "/home/u", "PREPCACHED_ROOT": "/scratch/u"}
    found = launcher.find(Settings(), environ)
    assert isinstance(found, launcher.Launcher)
    assert found.root == places.own_root(environ) == Path("/scratch/u")
    assert found.socket == Path("/scratch/u/prepcached.sock")
    assert places.own_root(environ | {"PREPCACHED_ROOT": ""}) == Path("/home/u/.cache/prepcache")


def test_an_unknown_user_gets_no_folder_in_the_working_directory(monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a uid without a name
    assert places.cache_folder({}) == Path("/.cache/prepcache")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.delenv("HOME")
    assert places.cache_folder(os.environ) == Path("/.cache/prepcache")
    assert user_stat_cache().folder == Path("/.cache/prepcache/digests-v4")


@pytest.mark.parametrize(("mode", "owner"), [(0o770, os.geteuid()), (0o700, None)])
def test_where_others_could_listen_it_must_be_the_user(tmp_path, mode, owner):
    tmp_path.chmod(mode)
    assert launcher.Launcher(tmp_path, {}).address.owner == owner
    assert places.own_root({"HOME": "/home/u", "XDG_CACHE_HOME": "rel"}) == Path("/home/u/.cache/prepcache")


def test_a_url_wins_then_the_system_service_then_the_users_own(tmp_path, monkeypatch):
    environ = {"HOME": str(tmp_path)}
    system = tmp_path / "system.sock"
    monkeypatch.setattr(launcher, "SYSTEM_SOCKET", system)
    given = Settings(address=Address(host="h", port=1))
    assert launcher.find(given, environ).address == Address(host="h", port=1)

    own = launcher.find(Settings(), environ)
    assert isinstance(own, launcher.Launcher) and own.address.socket == str(places.own_socket(environ))

    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(system))
        assert isinstance(launcher.find(Settings(), environ), launcher.Launcher), "nobody listens"
        service.listen()
        assert launcher.find(Settings(), environ).address.socket == str(system)
    system.unlink()
    system.write_text("not a socket")
    assert isinstance(launcher.find(Settings(), environ), launcher.Launcher)
