"""System-call filter: compiles the seccomp filter of confined programs into the bytes that the kernel accepts.

All kinds of confinement use it. It closes the gaps of folders and namespaces: sockets to programs of this machine,
kernel key rings, new namespaces, and io_uring, which would bypass the other rules.

Does not install the filter (see `sandbox.jail` and `sandbox.launcher`).
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Mapping
from dataclasses import dataclass

_LOAD, _JEQ, _JGE, _JSET, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_AT, _SECOND_AT = 0, 4, 16, 24  # offsets in struct seccomp_data
_X32 = 0x40000000
_INET, _INET6, _NETLINK = 2, 10, 16
_STREAM, _DATAGRAM, _RAW, _TYPE_MASK = 1, 2, 3, 0xF
_NEW_NAMESPACES = 0x7E020000  # every CLONE_NEW* flag that clone takes

_REFUSED = (
    "unshare", "setns", "mount", "umount2", "pivot_root", "open_tree", "move_mount", "fsopen", "fsconfig", "fsmount",
    "fspick", "mount_setattr", "bpf", "perf_event_open", "userfaultfd", "keyctl", "add_key", "request_key",
    "io_uring_setup", "io_uring_enter", "io_uring_register", "open_by_handle_at",
)  # fmt: skip
_MODES = (
    "chmod", "fchmodat", "fchmodat2", "chown", "lchown", "fchownat", "setxattr", "lsetxattr", "removexattr",
    "lremovexattr", "setxattrat", "removexattrat", "utime", "utimes", "futimesat",
)  # fmt: skip
_LEGACY = frozenset({"chmod", "chown", "lchown", "utime", "utimes", "futimesat"})  # of x86_64, missing on aarch64

# Numbers above 423 are equal on every architecture.
_COMMON: Mapping[str, int] = {
    "clone3": 435, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442,
    "fchmodat2": 452, "setxattrat": 463, "removexattrat": 466,
}  # fmt: skip
_X86_64: Mapping[str, int] = {
    "socket": 41, "socketpair": 53, "clone": 56, "chmod": 90, "chown": 92, "lchown": 94, "utime": 132,
    "pivot_root": 155, "mount": 165, "umount2": 166, "setxattr": 188, "lsetxattr": 189, "removexattr": 197,
    "lremovexattr": 198, "utimes": 235, "add_key": 248, "request_key": 249, "keyctl": 250, "fchownat": 260,
    "futimesat": 261, "fchmodat": 268, "unshare": 272, "utimensat": 280, "perf_event_open": 298,
    "open_by_handle_at": 304, "setns": 308, "bpf": 321, "userfaultfd": 323,
}  # fmt: skip
_AARCH64: Mapping[str, int] = {
    "setxattr": 5, "lsetxattr": 6, "removexattr": 14, "lremovexattr": 15, "umount2": 39, "mount": 40, "pivot_root": 41,
    "fchmodat": 53, "fchownat": 54, "utimensat": 88, "unshare": 97, "socket": 198, "socketpair": 199, "add_key": 217,
    "request_key": 218, "keyctl": 219, "clone": 220, "perf_event_open": 241, "open_by_handle_at": 265,
    "setns": 268, "bpf": 280, "userfaultfd": 282,
}  # fmt: skip
_MACHINES: Mapping[str, tuple[int, Mapping[str, int]]] = {
    "x86_64": (0xC000003E, {**_COMMON, **_X86_64}),
    "aarch64": (0xC00000B7, {**_COMMON, **_AARCH64}),
}


@dataclass(frozen=True, kw_only=True)
class Filter:
    families: frozenset[int]  # the permitted address families of sockets
    may_change_modes: bool = True  # and owners, times and extended attributes, by path
    may_use_datagrams: bool = True  # False permits only streams of the internet families


def socket_families(*, network: bool, loopback: bool) -> frozenset[int]:
    """Return the address families for a program. `loopback`: the program has its own network namespace."""
    return frozenset({_INET, _INET6, _NETLINK}) if network or loopback else frozenset()


def compile_filter(filter_: Filter, machine: str | None = None) -> bytes | None:
    """Return the filter as BPF code, or None if the system calls of the machine are unknown."""
    known = _MACHINES.get(machine or platform.machine())
    if known is None:
        return None
    architecture, numbers = known
    code = [_op(_LOAD, _ARCHITECTURE_AT), _op(_JEQ, architecture, yes=1), _op(_RETURN, _KILL), _op(_LOAD, _NUMBER_AT)]
    if machine == "x86_64" or (machine is None and platform.machine() == "x86_64"):
        code += [_op(_JGE, _X32, no=1), _op(_RETURN, _KILL)]
    refused = [numbers[name] for name in _REFUSED]  # raises KeyError rather than permit a call without a number
    if not filter_.may_change_modes:
        refused += [numbers[name] for name in _MODES if name in numbers or name not in _LEGACY]
    for number in refused:
        code += [_op(_JEQ, number, no=1), _refusal(errno.EPERM)]
    if not filter_.may_change_modes:
        code += _when(numbers["utimensat"], _times())
    code += [_op(_JEQ, numbers["clone3"], no=1), _refusal(errno.ENOSYS)]  # libraries fall back to clone
    code += _when(numbers["clone"], [_op(_LOAD, _FIRST_AT), _op(_JSET, _NEW_NAMESPACES, no=1), _refusal(errno.EPERM)])
    code += _when(numbers["socketpair"], _pairs())
    code += _when(numbers["socket"], _sockets(filter_))
    return b"".join([*code, _op(_RETURN, _ALLOW)])


def _sockets(filter_: Filter) -> list[bytes]:
    code = [_op(_LOAD, _FIRST_AT)]
    for family in sorted(filter_.families):
        if filter_.may_use_datagrams or family == _NETLINK:
            code += [_op(_JEQ, family, no=1), _op(_RETURN, _ALLOW)]
        else:
            stream = [_op(_LOAD, _SECOND_AT), _op(_AND, _TYPE_MASK), _op(_JEQ, _STREAM, no=1), _op(_RETURN, _ALLOW)]
            code += [_op(_JEQ, family, no=len(stream) + 1), *stream, _refusal(errno.EACCES)]
    return [*code, _refusal(errno.EACCES)]


def _pairs() -> list[bytes]:
    """Return the code that refuses datagram pairs. Unlike a stream, each end could connect to another address."""
    return [
        _op(_LOAD, _SECOND_AT),
        _op(_AND, _TYPE_MASK),
        _op(_JEQ, _DATAGRAM, yes=1),
        _op(_JEQ, _RAW, no=1),
        _refusal(errno.EACCES),
    ]


def _times() -> list[bytes]:
    """Return the code that refuses to change times by path. Without a path, the call changes an open file."""
    high_half = _SECOND_AT + 4
    return [
        _op(_LOAD, _SECOND_AT),
        _op(_JEQ, 0, no=3),
        _op(_LOAD, high_half),
        _op(_JEQ, 0, no=1),
        _op(_RETURN, _ALLOW),
        _refusal(errno.EPERM),
    ]


def _when(number: int, body: list[bytes]) -> list[bytes]:
    """Return the code that applies `body` to a system call. Then the filter ends, because `body` loads other values."""
    block = [*body, _op(_RETURN, _ALLOW)]
    return [_op(_JEQ, number, no=len(block)), *block]


def _refusal(error: int) -> bytes:
    return _op(_RETURN, _ERRNO | error)


def _op(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)
