"""Loopback door: the only connection out of a confined program without network."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import ToolUnavailable
from guildhall.sandbox.jail import Confinement, open_door, spawn
from guildhall.sandbox.view import Folder, View

if TYPE_CHECKING:
    from guildhall.sandbox.jail import ConfinedProcess, Kind

KINDS: tuple[Kind, ...] = ("bubblewrap", "namespaces", "landlock")

PROBES = """
import os, socket, sys, urllib.request
door, other, udp = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
print("door", urllib.request.build_opener(urllib.request.ProxyHandler({})).open(door).read().decode())
def probe(name, do):
    try:
        do()
        print(name, "reached")
    except OSError as error:
        print(name, "not reached")
def send(place):
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", place)
probe("other", lambda: socket.create_connection(("127.0.0.1", other), 2))
probe("far", lambda: socket.create_connection(("192.0.2.1", 80), 0.2))
probe("udp", lambda: send(("127.0.0.1", udp)))
probe("dns", lambda: send(("192.0.2.53", 53)))
probe("name", lambda: socket.getaddrinfo("example.org", 80))
probe("unix", lambda: socket.socket(socket.AF_UNIX))
print("files", sorted(int(fd) for fd in os.listdir("/proc/self/fd") if int(fd) > 2)[1:])
"""


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello")
    await writer.drain()
    writer.close()


async def wait_for_exit(program: ConfinedProcess) -> tuple[int, str]:
    assert program.process.stdout is not None
    output = await program.process.stdout.read()
    return await program.wait(), output.decode()


@pytest.mark.parametrize("kind", KINDS)
def test_a_confined_program_reaches_only_the_door(kind: Kind) -> None:
    async def main() -> None:
        door = await open_door(kind)
        with (
            socket.create_server(("127.0.0.1", 0)) as other,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        ):
            datagrams.bind(("127.0.0.1", 0))
            datagrams.setblocking(False)
            arguments = [door.url, str(other.getsockname()[1]), str(datagrams.getsockname()[1])]
            program = await spawn(
                [sys.executable, "-I", "-S", "-c", PROBES, *arguments],
                Confinement(view=View(cwd=Path("/"))),
                kind=kind,
                door=door,
            )
            listening = await door.receive_socket()
            door.close()
            server = await asyncio.start_server(answer, sock=listening)
            code, output = await wait_for_exit(program)
            server.close()
            assert output.splitlines()[0] == "door hello"
            tries = dict(line.split(" ", 1) for line in output.splitlines()[1:])
            assert tries.pop("files") == "[]"  # the program inherits no descriptor
            del tries["udp"]  # sending works in a network namespace; that nothing arrives is checked below
            assert set(tries.values()) == {"not reached"}, output
            assert len(tries) == 5
            assert code == 0
            with pytest.raises(BlockingIOError):
                datagrams.recv(1)

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_with_network_reaches_the_door_on_a_local_port(kind: Kind) -> None:
    async def main() -> None:
        door = await open_door(kind, network=True)
        code = "import socket,sys; print(socket.create_connection(('127.0.0.1', int(sys.argv[1]))).recv(9))"
        confinement = Confinement(view=View(cwd=Path("/")), network=True)
        argv = [sys.executable, "-I", "-S", "-c", code, str(door.port)]
        program = await spawn(argv, confinement, kind=kind, door=door)
        listening = await door.receive_socket()
        listening.setblocking(False)
        connection, _ = await asyncio.get_running_loop().sock_accept(listening)
        connection.sendall(b"hello")
        connection.close()
        listening.close()
        assert await wait_for_exit(program) == (0, "b'hello'\n")

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS[:2])
def test_a_missing_program_is_reported_after_the_door_opened(kind: Kind, tmp_path: Path) -> None:
    async def main() -> tuple[int, str]:
        door = await open_door(kind)
        program = await spawn(["/not/there"], Confinement(view=View(cwd=tmp_path)), kind=kind, door=door)
        (await door.receive_socket()).close()
        door.close()
        return await wait_for_exit(program)

    code, output = asyncio.run(main())
    assert code == 126
    assert "cannot start the program" in output


def test_a_failed_start_opens_no_door(tmp_path: Path) -> None:
    """Let the launcher die before it sends its socket."""

    async def main() -> None:
        door = await open_door("bubblewrap")
        view = View(cwd=tmp_path, folders=(Folder(path=tmp_path),))
        program = await spawn(["/bin/true"], Confinement(view=view, memory_bytes=4096), kind="bubblewrap", door=door)
        with pytest.raises(ToolUnavailable, match="did not open its port"):
            await door.receive_socket()
        await program.kill()
        door.close()

    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    asyncio.run(main())
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # noqa: PTH208


def test_a_program_writes_into_its_own_home(tmp_path: Path) -> None:
    async def main() -> tuple[int, str]:
        view = View(cwd=tmp_path, folders=(Folder(path=tmp_path, is_writable=True),))
        confinement = Confinement(view=view, home=tmp_path)
        return await wait_for_exit(await spawn(["/bin/sh", "-c", "echo $HOME $TMPDIR; touch ~/made"], confinement))

    assert asyncio.run(main()) == (0, f"{tmp_path} {tmp_path}\n")
    assert (tmp_path / "made").exists()
