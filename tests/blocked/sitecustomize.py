"""Block the network for the tests and for every Python process that they start.

Python imports a module of this name automatically if its folder is on PYTHONPATH. Only names of the local host are
resolved, and only loopback addresses and local sockets can be reached. A test can neither call a real model nor depend
on the internet.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import sys
from typing import Any

_OWN_NAMES = {"", "localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"}


def is_own(host: object) -> bool:
    """Return True if a host, as passed to sockets, is the local host."""
    if isinstance(host, bytes | bytearray):
        host = bytes(host).decode("ascii", "replace")
    if host is None or (isinstance(host, str) and host.lower() in _OWN_NAMES):
        return True
    address = _address(host)
    return address is not None and _is_local(address)


def _is_local(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback or address.is_unspecified


def _address(host: object) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(str(host).partition("%")[0])
    except ValueError:
        return None


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in {"socket.connect", "socket.sendto", "socket.sendmsg"}:
        sock, address = arguments[0], arguments[1]
        if sock.family in {socket.AF_INET, socket.AF_INET6} and address is not None and not is_own(address[0]):
            raise OSError(errno.ENETUNREACH, f"blocked in tests: {address[0]} is not this machine")
    elif event == "socket.getaddrinfo":
        # A literal address needs no look-up; it is checked when a socket connects to it.
        host = arguments[0].decode("ascii", "replace") if isinstance(arguments[0], bytes) else arguments[0]
        if not is_own(host) and _address(host) is None:
            raise socket.gaierror(socket.EAI_NONAME, f"blocked in tests: {host} is not looked up")
    elif event in {"socket.gethostbyname", "socket.gethostbyaddr"} and not is_own(arguments[0]):
        raise socket.gaierror(socket.EAI_NONAME, f"blocked in tests: {arguments[0]} is not looked up")


sys.addaudithook(_refuse)
