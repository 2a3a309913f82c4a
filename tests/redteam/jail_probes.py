"""Probes that a confined program runs against its jail. Each probe returns the text of a successful attack, or None.

Executed by path inside the jail with a JSON object of targets as the only argument. Prints one JSON object: the results
by name of the probe. The probes open kernel files and never write to them.
"""

import ctypes
import json
import os
import resource
import socket
import stat
import sys

libc = ctypes.CDLL(None, use_errno=True)
targets = json.loads(sys.argv[1])
X86_64 = os.uname().machine == "x86_64"
CALLS = {  # name: (number on x86-64, number on aarch64)
    "ptrace": (101, 117), "init_module": (175, 105), "finit_module": (313, 273), "kexec_load": (246, 104),
    "reboot": (169, 142), "sethostname": (170, 161), "swapon": (167, 224), "unshare": (272, 97), "setns": (308, 268),
    "mount": (165, 40), "pivot_root": (155, 41), "add_key": (248, 217), "keyctl": (250, 219), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "clone3": (435, 435),
    "open_by_handle_at": (304, 265), "fanotify_init": (300, 262), "process_vm_readv": (310, 270),
    "fsopen": (430, 430), "open_tree": (428, 428), "chroot": (161, 51),
}  # fmt: skip


def call(name, *arguments):
    """Return True if a system call was permitted, even if its arguments were invalid."""
    number = CALLS[name][0 if X86_64 else 1]
    ctypes.set_errno(0)
    if libc.syscall(number, *arguments) >= 0:
        return True
    return ctypes.get_errno() not in (1, 13, 38)  # EPERM, EACCES, ENOSYS


def permitted(*calls):
    return ", ".join(name for name, *arguments in calls if call(name, *arguments)) or None


def opens(path, flags=os.O_WRONLY):
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def writable_below(*roots):
    """Return some files below the folders that open for writing."""
    found = []
    for root in roots:
        paths = (os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names)
        for path in paths if os.path.isdir(root) else [root]:
            if opens(path):
                found.append(path)
            if len(found) == 3:
                return ", ".join(found)
    return ", ".join(found) or None


def succeeds(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except OSError:
        return None
    return f"{function.__name__} {arguments}"


def connects(family, address):
    try:
        with socket.socket(family, socket.SOCK_STREAM) as client:
            client.settimeout(2)
            client.connect(address)
    except OSError:
        return None
    return str(address)


def probe_kernel_settings():
    return writable_below("/proc/sys")


def probe_kernel_controls():
    names = ("irq", "bus", "fs", "acpi", "scsi", "tty", "sysrq-trigger", "mtrr", "kcore", "timer_list", "latency_stats")
    return writable_below(*(f"/proc/{name}" for name in names))


def probe_sysfs():
    return writable_below("/sys")


def probe_own_process_files():
    return writable_below(*(f"/proc/self/{name}" for name in ("oom_score_adj", "uid_map", "attr", "mem")))


def probe_devices():
    allowed = {"null", "zero", "full", "random", "urandom", "tty", "ptmx"}
    found = []
    for folder, _, names in os.walk("/dev"):
        for name in names:
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            is_device = stat.S_ISBLK(mode) or stat.S_ISCHR(mode)
            if is_device and name not in allowed and (opens(path) or opens(path, os.O_RDONLY)):
                found.append(path)
    return ", ".join(found[:3]) or None


def probe_device_nodes():
    path = os.path.join(os.environ["HOME"], "disk")
    try:
        os.mknod(path, 0o600 | stat.S_IFBLK, os.makedev(8, 0))
    except OSError:
        return None
    return "opened a block device" if opens(path, os.O_RDONLY) else None


def probe_mounts():
    return permitted(
        ("mount", b"none", b"/tmp", b"tmpfs", 0, None), ("pivot_root", b"/", b"/"), ("fsopen", b"tmpfs", 0),
        ("open_tree", -100, b"/", 1), ("chroot", b"/tmp"),
    )  # fmt: skip


def probe_namespaces():
    flags = [0x10000000, 0x00020000, 0x40000000, 0x20000000]
    return permitted(*(("unshare", flag) for flag in flags), ("clone3", None, 0))


def probe_foreign_namespaces():
    for name in ("mnt", "user", "pid", "net"):
        try:
            fd = os.open(f"/proc/{targets['pid']}/ns/{name}", os.O_RDONLY)
        except OSError:
            continue
        if call("setns", fd, 0):
            return name
    return None


def probe_foreign_processes():
    pid = targets["pid"]
    if call("ptrace", 0x4206, pid, None, None) and os.path.exists(f"/proc/{pid}/status"):  # PTRACE_SEIZE
        with open(f"/proc/{pid}/status") as status:
            if f"TracerPid:\t{os.getpid()}" in status.read():
                return "attached to the hall"
    return None


def probe_signals():
    try:
        os.kill(targets["pid"], 0)
    except OSError:
        return None
    try:  # the number can be that of another process in a process namespace
        with open(f"/proc/{targets['pid']}/cmdline", "rb") as command:
            return "can signal the hall" if b"pytest" in command.read() else None
    except OSError:
        return "can signal the hall"


def probe_foreign_environments():
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if targets["marker"].encode() in file.read():
                    return f"read the variables of process {name}"
        except OSError:
            continue
    return None


def probe_hidden_files():
    path = targets["hidden"]
    if opens(path, os.O_RDONLY):
        return path
    try:
        return ", ".join(os.listdir(os.path.dirname(path))) or None
    except OSError:
        return None


def probe_writes_outside():
    paths = ["/etc/x", "/usr/x", "/x", "/usr/local/bin/x", os.path.join(targets["outside"], "x")]
    found = [path for path in paths if opens(path, os.O_WRONLY | os.O_CREAT)]
    return ", ".join(found) or None


def probe_read_only_files():
    return targets["readable"] if opens(targets["readable"]) else None


def probe_links_to_outside():
    link = os.path.join(targets["inside"], "link")
    os.symlink(targets["hidden"], link)
    try:
        return "a symbolic link" if opens(link, os.O_RDONLY) else None
    finally:
        os.unlink(link)


def probe_hard_links():
    return succeeds(os.link, targets["hidden"], os.path.join(targets["inside"], "hard"))


def probe_attributes_outside():
    path = targets["readable"]
    attempts = [
        succeeds(os.chmod, path, 0o777),
        succeeds(os.chown, path, 65534, 65534),
        succeeds(os.utime, path, (1, 1)),
        succeeds(os.utime, targets["hidden"], (1, 1)),
        succeeds(os.setxattr, path, "user.x", b"1"),
        succeeds(os.truncate, path, 0),
        succeeds(os.rename, path, path + "2"),
    ]
    return ", ".join(filter(None, attempts)) or None


def probe_loopback():
    return connects(socket.AF_INET, ("127.0.0.1", targets["port"]))


def probe_abstract_sockets():
    return connects(socket.AF_UNIX, "\0" + targets["abstract"])


def probe_socket_files():
    return connects(socket.AF_UNIX, targets["socket"])


def probe_socket_families():
    found = []
    for family, kind in (
        (17, 3),
        (40, 1),
        (31, 3),
        (29, 3),
        (2, 3),
        (38, 5),
    ):  # packet, vsock, bluetooth, can, raw, alg
        try:
            socket.socket(family, kind).close()
        except OSError:
            continue
        found.append(str(family))
    return ", ".join(found) or None


def probe_key_rings():
    return permitted(("add_key", b"user", b"probe", b"x", 1, -3), ("keyctl", 0, -3, 1))


def probe_kernel_interfaces():
    return permitted(
        ("bpf", 0, None, 0), ("perf_event_open", None, 0, -1, -1, 0), ("userfaultfd", 0), ("io_uring_setup", 1, None),
        ("fanotify_init", 0, 0), ("open_by_handle_at", -100, None, 0),
    )  # fmt: skip


def probe_machine_control():
    return permitted(
        ("init_module", None, 0, b""), ("finit_module", -1, b"", 0), ("kexec_load", 0, 0, None, 0),
        ("reboot", 0, 0, 0, None), ("sethostname", b"", -1), ("swapon", None, 0),
    )  # fmt: skip


def probe_privileges():
    with open("/proc/self/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    wrong = [name for name in ("CapEff", "CapPrm", "CapInh", "CapAmb") if int(status[name], 16)]
    if status["NoNewPrivs"] != "1":
        wrong.append("NoNewPrivs")
    return ", ".join(wrong) or None


def probe_terminal():
    for fd in (0, 1, 2):
        if os.isatty(fd):
            return f"descriptor {fd} is a terminal"
    return "/dev/tty" if opens("/dev/tty", os.O_RDWR) else None


def probe_descriptors():
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if int(name) > 2 and not target.startswith(("/proc/", "/memfd:guild")):
            found.append(target)
    return ", ".join(found) or None


def probe_memory_file_systems():
    """Fill nothing: compare the size that the file system reports with the limit."""
    found = []
    for path in ("/dev", "/dev/shm", "/tmp", "/run"):
        if os.path.isdir(path) and opens(os.path.join(path, "x"), os.O_WRONLY | os.O_CREAT):
            size = os.statvfs(path).f_blocks * os.statvfs(path).f_frsize
            if size > targets["scratch_bytes"]:
                found.append(f"{path} {size}")
    return ", ".join(found) or None


def probe_limits():
    names = {
        "RLIMIT_DATA": resource.RLIMIT_DATA,
        "RLIMIT_FSIZE": resource.RLIMIT_FSIZE,
        "RLIMIT_CORE": resource.RLIMIT_CORE,
    }
    return ", ".join(name for name, limit in names.items() if resource.getrlimit(limit)[1] == -1) or None


probes = {name.removeprefix("probe_"): probe for name, probe in dict(globals()).items() if name.startswith("probe_")}
print(json.dumps({name: probe() for name, probe in probes.items()}))
