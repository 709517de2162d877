"""Attacks on the sandbox, each on the real one: what a program that a model wrote may try, and what becomes of it.

`bwrap` is the default and must be the one in use here: a machine without it fails these tests, it does not skip them.
"""

import os
import platform
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from toys.walls import USER, Program, alive, as_user, gone, run_here

from evalrig.config.schema import RunConfig
from evalrig.errors import RunError
from evalrig.interpreter import interpreter
from evalrig.plugins import find, make
from evalrig.sandbox import Booth, Limits, Ran, Sandbox, SandboxUnavailable, probe
from evalrig.sandboxes import bwrap
from evalrig.sandboxes.bwrap import Bwrap
from evalrig.sandboxes.landlock import Landlock
from evalrig.sandboxes.none import Nothing
from evalrig.seccomp import deny_list

X86 = platform.machine() == "x86_64"
SECRET = "canary-" + secrets.token_hex(8)
TAG = "tag" + secrets.token_hex(8)


@dataclass(frozen=True)
class Outside:
    """What lies outside and must stay as it is."""

    folder: Path
    tcp: socket.socket
    udp: socket.socket
    unix: socket.socket

    @property
    def victim(self) -> Path:
        return self.folder / "victim"


@pytest.fixture(scope="module")
def outside() -> Generator[Outside]:
    """Files that any uid may read, change and delete, one that belongs to the program's uid, and three listeners."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    for name, owner in (("victim", None), ("own-root", 60000), ("own-user", USER)):
        (folder / name).write_text(SECRET)
        (folder / name).chmod(0o666 if owner is None else 0o600)
        if owner is not None and os.geteuid() == 0:
            os.chown(folder / name, owner, owner)
    tcp, udp = socket.socket(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    unix = socket.socket(socket.AF_UNIX)
    tcp.bind(("127.0.0.1", 0))
    udp.bind(("127.0.0.1", 0))
    unix.bind(f"\0{TAG}")
    tcp.listen()
    unix.listen()
    for one in (tcp, udp, unix):
        one.setblocking(False)
    yield Outside(folder, tcp, udp, unix)
    for one in (tcp, udp, unix):
        one.close()
    shutil.rmtree(folder)


# ---- attempts, a line each; expected in bwrap, and in landlock (the same where it is not said)

NUMBERS: dict[str, tuple[int, int]] = {  # x86_64, aarch64
    "ptrace": (101, 117), "bpf": (321, 280), "io_uring_setup": (425, 425), "keyctl": (250, 219), "add_key": (248, 217),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "memfd_create": (319, 279), "shmget": (29, 194),
    "pidfd_getfd": (438, 438), "fsopen": (430, 430), "open_by_handle_at": (304, 265), "setns": (308, 268),
    "kexec_load": (246, 104), "init_module": (175, 105), "syslog": (103, 116),
}  # fmt: skip


def lines(outside: Outside, own: str) -> dict[str, tuple[str, str, str]]:
    """Name -> expression, what bwrap makes of it, what landlock does. `own`: a file of the program's own uid."""
    victim, folder = str(outside.victim), str(outside.folder)
    tcp, udp = outside.tcp.getsockname()[1], outside.udp.getsockname()[1]
    enoent, eacces, eperm = "ENOENT", "EACCES", "EPERM"
    rows: dict[str, tuple[str, str, str]] = {
        "read a world-readable file": (f"open({victim!r}).read()", enoent, eacces),
        "read an own file": (f"open({folder!r} + '/{own}').read()", enoent, eacces),
        "read /etc/passwd": ("open('/etc/passwd').read()", enoent, eacces),
        "list the home": (f"os.listdir({str(Path.home())!r})", enoent, eacces),
        "list outside": (f"os.listdir({folder!r})", enoent, eacces),
        "stat outside": (f"os.stat({victim!r}).st_size", enoent, f"DONE {len(SECRET)}"),  # landlock does not cover it
        "delete": (f"os.unlink({victim!r})", enoent, eacces),
        "rename": (f"os.rename({victim!r}, {victim!r} + '2')", enoent, eacces),
        "overwrite": (f"open({victim!r}, 'w')", enoent, eacces),
        "truncate": (f"os.truncate({victim!r}, 0)", enoent, eacces),
        "make a file outside": (f"open({folder!r} + '/new', 'w')", enoent, eacces),
        "make a folder outside": (f"os.mkdir({folder!r} + '/new')", enoent, eacces),
        "write /usr": ("open('/usr/x', 'w')", "EROFS", eacces),
        "write /": ("open('/x', 'w')", "EROFS", eacces),
        "write /dev": ("open('/dev/x', 'w')", "EROFS", eacces),
        "write the program": ("open(__file__, 'w')", "EROFS", eacces),
        "chmod": (f"os.chmod({folder!r} + '/{own}', 0o777)", enoent, eperm),
        "utime": (f"os.utime({folder!r} + '/{own}', (1, 1))", enoent, eperm),
        "symlink": (f"[os.symlink({victim!r}, 'sym'), open('sym').read()]", enoent, eacces),
        "hard link": (f"os.link({victim!r}, 'hard')", enoent, "EXDEV|EACCES"),
        "dot dot": (f"open('..' + '/..' * 8 + {victim!r}).read()", enoent, eacces),
        "root of the first process": (f"open('/proc/1/root' + {victim!r}).read()", enoent, eacces),
        "working folder": (f"open('/proc/self/cwd/../../../..' + {victim!r}).read()", enoent, eacces),
        "core_pattern": ("open('/proc/sys/kernel/core_pattern', 'w')", "EACCES|EROFS|EPERM", eacces),
        "sysrq-trigger": ("open('/proc/sysrq-trigger', 'w')", "EACCES|EROFS|EPERM|ENOENT", "EACCES|ENOENT"),
        "tcp": (f"socket.create_connection(('127.0.0.1', {tcp}), 2)", eperm, eperm),
        "udp": (f"socket.socket(socket.AF_INET, 2).sendto(b'x', ('127.0.0.1', {udp}))", eperm, eperm),
        "abstract unix": (f"socket.socket(socket.AF_UNIX).connect({chr(0) + TAG!r})", eperm, eperm),
        "vsock": ("socket.socket(40, 1)", eperm, eperm),
        "netlink": ("socket.socket(16, 3)", eperm, eperm),
        "kill the harness": (f"os.kill({os.getpid()}, 9)", "ESRCH", eperm),
        "kill everybody": ("os.kill(-1, 9)", "ESRCH", eperm),
        "stop the parent": (
            "os.kill(os.getppid(), 19)",
            "DONE None",
            eperm,
        ),  # in bwrap that is the sandbox's own first
        "kill through a file": (
            "[__import__('fcntl').fcntl(0, 10, 9), __import__('fcntl').fcntl(0, 8, os.getppid())]",
            "DONE .*",
            eperm,
        ),
        "limits of the harness": (
            f"__import__('resource').prlimit({os.getpid()}, 0, (1, 1))",
            "ESRCH|ProcessLookupError",
            "EPERM|PermissionError",
        ),
        "niceness of the harness": (f"os.setpriority(0, {os.getpid()}, 19)", "ESRCH", eperm),
        "process_vm_readv": ("call(libc.process_vm_readv(os.getppid(), None, 0, None, 0, 0))", eperm, eperm),
        "unshare": ("call(libc.unshare(0x10000000))", eperm, eperm),
        "clone NEWUSER": (f"call(libc.syscall({56 if X86 else 220}, 0x10000011, 0, 0, 0, 0))", eperm, eperm),
        "clone3": ("call(libc.syscall(435, None, 0))", "ENOSYS", "ENOSYS"),
        "mount": ("call(libc.mount(b'none', b'/work', b'tmpfs', 0, None))", eperm, eperm),
        # System V and POSIX objects in the kernel's memory: bwrap has a space of its own for them
        "look through shared memory": ("call(libc.shmctl(0, 13, ctypes.create_string_buffer(256)))", "EINVAL", eperm),
        "attach shared memory": ("libc.shmat(1, None, 0) in (-1, 0xFFFFFFFF) and call(-1)", "EINVAL|EIDRM", eperm),
        "make a message queue": (
            f"call(libc.syscall({240 if X86 else 180}, b'{TAG}', 0o102, 0o600, None)) > 0",
            "DONE True",
            eperm,
        ),
        "remove a message queue": (f"call(libc.syscall({241 if X86 else 181}, b'none'))", enoent, eperm),
        "umount": ("call(libc.umount2(b'/proc/1', 0))", eperm, eperm),
        "chroot": ("call(libc.chroot(b'/'))", eperm, eperm),
        "raise a limit": ("__import__('resource').setrlimit(7, (4096, 4096))", "ValueError|EPERM", "ValueError|EPERM"),
        "become root": ("os.setuid(0)", "EINVAL|EPERM", eperm),
        "memory of the parent": ("open(f'/proc/{os.getppid()}/mem', 'r+b')", enoent, eacces),
        "files of the parent": ("os.listdir(f'/proc/{os.getppid()}/fd')", enoent, eacces),
    }
    rows |= {
        name: (f"call(libc.syscall({pair[not X86]}, 0, 0, 0, 0, 0))", eperm, eperm) for name, pair in NUMBERS.items()
    }
    if X86:
        rows["x32"] = ("call(libc.syscall(0x40000000 | 39))", eperm, eperm)
    return rows


LAST = {"stop the parent", "kill through a file"}
"""Not in one program with others."""

BOMB = """
made = 0
for _ in range(200):
    try:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        made += 1
    except OSError:
        break
print(made)
"""
DAEMON = f"""
if os.fork() == 0:
    tried("setsid", os.setsid)
    if os.fork() == 0:
        os.execv({"/usr/bin/python3"!r}, ["python3", "-c", "import time; time.sleep(60) # {TAG}"])
    os._exit(0)
os.wait()
"""
FILES = """
written = 0
try:
    for n in range(12):
        with open(f"f{n}", "wb") as file:
            for _ in range(15):
                written += file.write(bytes(1 << 20))
                file.flush()
except OSError as error:
    print(errno.errorcode[error.errno])
print(written >> 20)
"""
STUBBORN = """
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGXCPU):
    signal.signal(number, signal.SIG_IGN)
while True:
    pass
"""
SEVERAL = """
kept = []
for _ in range(4):
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            taken = bytearray(300 << 20)
            os.write(writing, b"got")
        except MemoryError:
            os.write(writing, b"no")
        time.sleep(30)
    kept.append(os.read(reading, 3).decode())
print(kept)
"""
UNREADABLE = """
print(libc.prctl(4, 0, 0, 0, 0), flush=True)  # PR_SET_DUMPABLE: as the process that holds the tests does
if os.fork() == 0:
    parent = os.getppid()
    for name in ("mem", "fd", "environ", "maps", "fd/0", "fdinfo", "map_files"):
        path = f"/proc/{parent}/{name}"
        tried(name, lambda: os.listdir(path) if name in ("fd", "fdinfo", "map_files") else os.open(path, os.O_RDONLY))
    os._exit(0)
os.wait()
"""
SEEN = """
for path in ("self", *range(1, 5), os.getppid()):
    for name in ("environ", "cmdline"):
        try:
            print(open(f"/proc/{path}/{name}", "rb").read())
        except OSError:
            pass
def is_open(fd):
    try:
        return bool(os.fstat(fd))
    except OSError:
        return False
print(os.environ, list(filter(is_open, range(64))), sys.argv)
"""
INT_80 = """
code = bytes([0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3])  # getpid by the 32-bit door
page = libc.mmap(None, ctypes.c_size_t(4096), 7, 0x22, -1, ctypes.c_long(0))
ctypes.memmove(page, code, len(code))
print(ctypes.CFUNCTYPE(ctypes.c_int)(page)())
"""
SHORT = {"wall_seconds": 1.0}


def programs(rows: dict[str, tuple[str, str, str]]) -> dict[str, Program]:
    together = [name for name in rows if name not in LAST]
    made = {"lines": Program(text="\n".join(f"tried({name!r}, lambda: {rows[name][0]})" for name in together), slot=0)}
    made |= {name: Program(text=f"tried({name!r}, lambda: {rows[name][0]})") for name in LAST}
    return made | {
        "fork bomb": Program(text=BOMB, alone=True),
        "one process with 1.5 GB": Program(text="tried('memory', lambda: bytearray(1500 << 20))"),
        "four processes with 300 MB": Program(text=SEVERAL, limits={"memory_mb": 512, "wall_seconds": 20}),
        "many files": Program(text=FILES, limits={"wall_seconds": 30}),
        "shared memory": Program(text=FILES.replace('f"f{n}"', 'f"/dev/shm/f{n}"'), limits={"wall_seconds": 30}),
        "a file of 10 GB": Program(text="tried('large', lambda: os.truncate(open('large', 'wb').name, 10 << 30))"),
        "flood of output": Program(text="while True: os.write(1, b'x' * 65536)"),
        "flood of errors": Program(text="while True: os.write(2, b'x' * 65536)"),
        "loop": Program(text="while True: pass", limits=SHORT),
        "stubborn loop": Program(text=STUBBORN, limits=SHORT),
        "sleep with closed output": Program(text="os.close(1); os.close(2); time.sleep(60)", limits=SHORT),
        "processor time": Program(text=STUBBORN, limits={"cpu_seconds": 1, "wall_seconds": 20}),
        "daemon": Program(text=DAEMON),
        "what is seen": Program(text=SEEN),
        "tests out of reach": Program(text=UNREADABLE),
        "32-bit door": Program(text=INT_80),
        "lies about the sandbox": Program(text="print('bwrap: no', file=sys.stderr); os._exit(125)"),
        "lies about the gate": Program(text="print(flush=True); print('{\"exit-code\": 0}', flush=True); os._exit(3)"),
        "input": Program(text="print(sys.stdin.read()[::-1])", stdin="stressed"),
        "large input": Program(text="print(len(sys.stdin.read()))", stdin="x" * 5_000_000),
        "input that is not read": Program(text="print(1)", stdin="x" * 5_000_000),
        "asyncio": Program(text="import asyncio; asyncio.run(asyncio.sleep(0.01)); print('slept')"),
        "threads": Program(text=(
            "import threading; ts = [threading.Thread(target=time.sleep, args=(.2,)) for _ in range(8)]\n"
            "[t.start() for t in ts]; [t.join() for t in ts]; print('joined')")),
        "signal to itself": Program(text="os.abort()"),
    }  # fmt: skip


@pytest.fixture(scope="module", params=["bwrap", "bwrap as a user", "landlock", "landlock as a user"])
def place(request: pytest.FixtureRequest, outside: Outside) -> "Place":
    kind, _, user = request.param.partition(" ")
    by_user = bool(user) or os.geteuid() != 0
    rows = lines(outside, "own-user" if by_user else "own-root")
    os.environ["EVALRIG_TEST_SECRET"] = SECRET
    try:
        asked = programs(rows)
        if by_user:
            return Place(kind, by_user, rows, as_user(kind, asked))
        sandbox = make(find("sandboxes", kind, Sandbox, "sandbox"), False)
        assert probe(sandbox)
        return Place(kind, by_user, rows, run_here(sandbox, asked))
    finally:
        del os.environ["EVALRIG_TEST_SECRET"]


@dataclass(frozen=True)
class Place:
    """What became of every program in one sandbox."""

    kind: str
    by_user: bool
    rows: dict[str, tuple[str, str, str]]
    ran: dict[str, Any]

    def of(self, name: str) -> Ran:
        assert name in self.ran, self.ran
        return self.ran[name]

    def said(self, name: str) -> str:
        return (self.of(name).stdout + self.of(name).stderr).decode(errors="replace").strip()


def test_each_attempt_to_reach_out_is_refused(place: Place) -> None:
    import re

    said = "\n".join(place.of(name).stdout.decode() for name in ("lines", *LAST))
    found = dict(line.split(" = ", 1) for line in said.splitlines() if " = " in line)
    wrong = {
        name: (found.get(name), row[1 + (place.kind == "landlock")])
        for name, row in place.rows.items()
        if not re.fullmatch(row[1 + (place.kind == "landlock")], found.get(name, "nothing"))
        and not (name == "kill through a file" and place.kind == "bwrap")
    }
    assert not wrong, place.said("lines")[-2000:]


def test_nothing_outside_was_changed_and_nothing_was_received(place: Place, outside: Outside) -> None:
    for name in ("victim", "own-root", "own-user"):
        assert (outside.folder / name).read_text() == SECRET
    assert outside.victim.stat().st_mode & 0o777 == 0o666
    assert (outside.folder / "own-user").stat().st_mode & 0o777 == 0o600
    assert (outside.folder / "own-user").stat().st_mtime > 1000
    assert len(list(outside.folder.iterdir())) == 3
    for listener in (outside.tcp, outside.unix):
        with pytest.raises(BlockingIOError):
            listener.accept()
    with pytest.raises(BlockingIOError):
        outside.udp.recv(1)


def test_no_secret_of_the_environment_and_no_command_line_of_the_host_is_seen(place: Place) -> None:
    said = place.said("what is seen")
    assert SECRET not in said
    assert "pytest" not in said
    assert "EVALRIG_TEST_SECRET" not in said
    assert "[0, 1, 2]" in said, "more than its three files is open"


def test_a_fork_bomb_stops_at_the_limit(place: Place) -> None:
    made = int(place.said("fork bomb"))
    assert made < (200 if place.kind == "landlock" and place.by_user else 40)


def test_memory_of_one_process_is_limited_and_that_of_several_adds_up(place: Place) -> None:
    """The second half is what no sandbox here keeps in: see docs/sandbox.md."""
    assert place.said("one process with 1.5 GB") == "memory = MemoryError"
    assert place.said("four processes with 300 MB") == "['got', 'got', 'got', 'got']"


def test_files_are_limited_together_by_bwrap_and_one_by_one_by_landlock(place: Place) -> None:
    assert place.said("a file of 10 GB") == "large = EFBIG"
    said = place.said("many files").split()
    if place.kind == "bwrap":
        assert said[0] == "ENOSPC"
        assert 60 <= int(said[1]) <= 64
        assert place.said("shared memory").split()[0] == "ENOSPC"
    else:
        assert said == ["180"]
        assert place.said("shared memory").split() == ["EACCES", "0"]


@pytest.mark.parametrize("name", ["flood of output", "flood of errors"])
def test_a_flood_is_cut_and_ended(place: Place, name: str) -> None:
    ran = place.of(name)
    assert ran.ended == "output"
    assert sorted((len(ran.stdout), len(ran.stderr))) == [0, 1 << 20]


@pytest.mark.parametrize("name", ["loop", "stubborn loop", "sleep with closed output"])
def test_the_wall_clock_ends_whatever_ignores_signals(place: Place, name: str) -> None:
    ran = place.of(name)
    assert (ran.ended, ran.code) == ("timeout", None)
    assert 1.0 <= ran.seconds < 8


def test_processor_time_ends_a_loop_before_the_wall_clock(place: Place) -> None:
    ran = place.of("processor time")
    assert (ran.ended, ran.code) == ("exit", -9)


def test_a_daemon_does_not_outlive_its_program(place: Place) -> None:
    assert place.of("daemon").ended == "exit"
    assert ("setsid = EPERM" in place.said("daemon")) == (place.kind == "landlock")
    assert gone(TAG), alive(TAG)


def test_a_process_that_is_not_dumpable_keeps_its_tests_from_its_child(place: Place) -> None:
    said = place.said("tests out of reach").splitlines()
    assert said[0] == "0"
    assert len(said) == 8
    assert all(line.endswith((" = EACCES", " = EPERM")) for line in said[1:]), said


@pytest.mark.skipif(not X86, reason="a door of x86 alone")
def test_system_calls_of_another_machine_end_the_program(place: Place) -> None:
    assert place.of("32-bit door").code == -31


def test_a_program_cannot_pass_its_failure_off_as_the_sandboxs(place: Place) -> None:
    lied = place.of("lies about the sandbox")
    assert (lied.ended, lied.code, lied.stderr) == ("exit", 125, b"bwrap: no\n")
    lied = place.of("lies about the gate")
    assert (lied.ended, lied.code, lied.stdout) == ("exit", 3, b'\n{"exit-code": 0}\n')


def test_ordinary_programs_work(place: Place) -> None:
    assert place.said("input") == "desserts"
    assert place.said("large input") == "5000000"
    assert place.said("input that is not read") == "1"
    assert place.said("asyncio") == "slept"
    assert place.said("threads") == "joined"
    assert place.of("signal to itself").code == (-6 if place.kind == "bwrap" else place.of("signal to itself").code)


# ---- refusals: never something weaker


def test_the_default_is_bwrap_and_it_is_in_use_here() -> None:
    assert RunConfig.sandbox == "bwrap"
    assert shutil.which("bwrap"), "install the Debian package bubblewrap: these tests are about it"
    one = Bwrap(False)
    assert Booth(one, 1, probe(one)).label.startswith("bwrap 0.")


def test_without_the_program_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailable) as caught:
        Bwrap(True)
    assert str(caught.value) == (
        "sandbox: bwrap not found; install the Debian package bubblewrap, or set `sandbox: landlock` (weaker)"
    )


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo bubblewrap 0.4.1", "bubblewrap 0.4.1 is too old: 0.8 is the least"),
        ("exit 3", "--version fails"),
        ('[ "$1" = --version ] && echo bubblewrap 0.8.0 || exit 0', "cannot be set up: ended with code 0"),
        ('[ "$1" = --version ] && echo bubblewrap 0.8.0 || { echo bwrap: no >&2; exit 1; }', "cannot be set up: bwrap: no"),
        ('[ "$1" = --version ] && echo bubblewrap 0.8.0 || echo', "does not tell its first process"),
    ],
)  # fmt: skip
def test_a_bwrap_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, words: str
) -> None:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    (folder / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    try:
        with pytest.raises(SandboxUnavailable, match=words):
            probe(Bwrap(False))
    finally:
        shutil.rmtree(folder)


def test_a_sandbox_that_lets_a_program_out_is_refused() -> None:
    """A bwrap that does nothing but start the command would pass every test of a program that only prints."""
    open_ = Nothing(True)
    assert probe(open_)
    open_.confines = True  # type: ignore[misc]
    with pytest.raises(SandboxUnavailable, match="let a program reach a file and the network"):
        probe(open_)


def test_a_set_up_that_fails_is_never_a_programs_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    walls = bwrap._walls
    monkeypatch.setattr(bwrap, "_walls", lambda python: [*walls(python), "--ro-bind", "/no/such", "/x"])
    with pytest.raises(SandboxUnavailable, match="cannot be set up: bwrap: Can't find source path /no/such"):
        Bwrap(False).run("print(1)", b"", Limits(), 0)


def test_where_namespaces_are_forbidden_bwrap_refuses_and_landlock_works() -> None:
    refused = as_user("bwrap", {}, forbid=True)
    assert "bwrap cannot be set up: bwrap: " in refused["refused"]
    assert "namespace" in refused["refused"]
    works = as_user("landlock", {"one": Program(text="print(1)")}, forbid=True)
    assert works["one"].stdout == b"1\n"


def test_no_sandbox_needs_a_second_key() -> None:
    with pytest.raises(SandboxUnavailable, match=r"set `unsandboxed: true` as well, or use `sandbox: bwrap`"):
        Nothing(False)


def test_without_a_sandbox_a_program_ends_all_the_same() -> None:
    sandbox = Nothing(True)
    ran = sandbox.run("while True: pass", b"", Limits(wall_seconds=0.5), 0)
    assert ran.ended == "timeout"
    sandbox.run(f"import os\nif os.fork() == 0: os.execv('/usr/bin/python3', ['x', '-c', 'import time; time.sleep(60) #{TAG}n'])",
                b"", Limits(), 0)  # fmt: skip
    assert gone(f"{TAG}n")


@pytest.mark.skipif(os.geteuid() != 0, reason="a uid that is given up must be had")
def test_a_python_in_a_closed_home_is_refused(tmp_path: Path) -> None:
    """pyenv and uv put it there; a link from the usual place is looked through."""
    home = Path("/opt") / f"evalrig-{TAG}"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python3").touch()
    link = tmp_path / "python3"
    try:
        link.symlink_to(home / "bin" / "python3")
        assert interpreter(60000, system=str(link)).prefix == str(home)
        home.chmod(0o700)
        with pytest.raises(
            SandboxUnavailable, match=rf"{home} is closed to uid 60000; install the Debian package python3"
        ):
            interpreter(60000, system=str(link))
    finally:
        shutil.rmtree(home)
    elsewhere = tmp_path / "python"
    elsewhere.touch()
    link.unlink()
    link.symlink_to(elsewhere)
    with pytest.raises(
        SandboxUnavailable, match=r"lies under neither /usr nor /opt; install the Debian package python3"
    ):
        interpreter(60000, system=str(link))
    with pytest.raises(SandboxUnavailable, match=r"lies under neither"):
        interpreter(60000, system="/no/such", running=str(elsewhere))


def test_a_machine_without_a_table_is_refused() -> None:
    assert len(deny_list(machine="aarch64")) % 8 == 0
    with pytest.raises(SandboxUnavailable, match="no list of system calls for riscv64"):
        deny_list(machine="riscv64")


def test_a_landlock_that_cannot_refuse_the_network_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalrig.landlocked.abi", lambda: 3)
    with pytest.raises(SandboxUnavailable, match=r"this kernel has version 3 of Landlock; use Linux 6\.7 or newer"):
        Landlock(False)


# ---- the booth


def test_a_booth_that_is_closed_ends_what_runs_at_once() -> None:
    import asyncio

    async def closed() -> float:
        booth = Booth(Bwrap(False), 2)
        running = [asyncio.ensure_future(booth.run(f"import time; time.sleep(60) # {TAG}b", b"")) for _ in range(2)]
        await asyncio.sleep(0.8)
        began = time.monotonic()
        booth.close()
        ended = await asyncio.gather(*running, return_exceptions=True)
        assert all(isinstance(one, RunError) for one in ended)
        return time.monotonic() - began

    assert asyncio.run(closed()) < 5


def test_a_booth_that_is_closed_says_so() -> None:
    import asyncio

    booth = Booth(Bwrap(False), 1)
    booth.close()
    with pytest.raises(RunError, match="closed"):
        asyncio.run(booth.run("print(1)"))


def test_a_lack_of_descriptors_is_the_runs_error_and_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a traceback, not a mark of the model, and a program that was started already is ended."""
    import asyncio

    from evalrig import supervised

    started: list[int] = []
    opened = os.pidfd_open

    def lacking(pid: int, flags: int = 0) -> int:
        started.append(pid)
        raise OSError(24, "Too many open files")

    booth = Booth(Bwrap(False), 1)
    monkeypatch.setattr(supervised.os, "pidfd_open", lacking)
    with pytest.raises(RunError, match="bwrap cannot run a program: Too many open files; free it"):
        asyncio.run(booth.run("print(1)"))
    monkeypatch.setattr(supervised.os, "pidfd_open", opened)
    assert len(started) == 1
    assert not Path(f"/proc/{started[0]}").exists()
    assert asyncio.run(booth.run("print(1)")).stdout == b"1\n"  # its slot was given back
    booth.close()


def test_a_machine_of_many_cores_does_not_run_out_of_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """192 cores and the usual 1,024 descriptors: 384 runs at once would need several times as many."""
    import resource

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(192)))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    assert Booth(Bwrap(False)).at_once == 32
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(2)))
    assert Booth(Bwrap(False)).at_once == 4


def test_no_run_needs_more_descriptors_than_it_is_reckoned_with(monkeypatch: pytest.MonkeyPatch) -> None:
    from evalrig import supervised
    from evalrig.sandbox import DESCRIPTORS

    most: list[int] = []
    fed = supervised.Watched._feed

    def counted(self: supervised.Watched) -> None:
        most.append(len(list(Path("/proc/self/fd").iterdir())))
        fed(self)

    monkeypatch.setattr(supervised.Watched, "_feed", counted)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for kind in (Bwrap, Landlock):
        kind(False).run("print(1)", b"", Limits(), 0)
    assert most
    assert max(most) - before <= DESCRIPTORS


def test_no_descriptor_and_no_zombie_is_left_by_many_runs() -> None:
    sandbox = Bwrap(False)
    probe(sandbox)
    before = set(Path("/proc/self/fd").iterdir())
    for _ in range(5):
        sandbox.run("print(1)", b"", Limits(), 0)
        sandbox.run("while True: print(1)", b"x" * 100_000, Limits(output_bytes=1000), 0)
    assert set(Path("/proc/self/fd").iterdir()) == before
    states = [path.read_text().rpartition(")")[2].split() for path in Path("/proc").glob("[0-9]*/stat")]
    assert not [state for state in states if state[0] == "Z" and state[1] == str(os.getpid())]


def test_text_that_is_no_utf_8_is_a_program_that_fails() -> None:
    """Half a surrogate pair, as a model's JSON may hold it, is not the harness's error."""
    for sandbox in (Bwrap(False), Landlock(False)):
        ran = sandbox.run("print('\ud83d')\0", b"", Limits(), 0)
        assert (ran.ended, ran.code) == ("exit", 1)
        assert b"SyntaxError" in ran.stderr


def test_a_program_that_ended_while_nobody_could_look_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A harness that was starved for longer than the limit must not call a finished program a timeout."""
    from evalrig import supervised

    opened = supervised.Watched._open_gate

    def starved(self: supervised.Watched) -> None:
        opened(self)
        self._feed()
        time.sleep(1.5)

    monkeypatch.setattr(supervised.Watched, "_open_gate", starved)
    ran = Bwrap(False).run("print(1)", b"", Limits(wall_seconds=0.2), 0)
    assert (ran.ended, ran.stdout) == ("exit", b"1\n")


def test_more_slots_than_uids_are_refused() -> None:
    assert Booth(Bwrap(False), 10_000).at_once == 1000
    with pytest.raises(ValueError, match="0 to 999"):
        Bwrap(False).run("print(1)", b"", Limits(), 1000)


def test_a_scratch_folder_with_a_colon_opens_no_other_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`/a:/b/work` would be read as `/a`, with all that is in it, and `/b/work`."""
    other = tmp_path / "a"
    (tmp_path / f"a:{tmp_path}").mkdir(parents=True)
    other.mkdir(mode=0o777)
    monkeypatch.setattr(tempfile, "tempdir", f"{other}:{tmp_path}")
    with pytest.raises(SandboxUnavailable, match="has a colon; set TMPDIR"):
        Landlock(False).run(f"open({str(other)!r} + '/x', 'w')", b"", Limits(), 0)


def test_a_folder_that_a_program_makes_hard_to_delete_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand levels break a recursive deletion; a folder of mode 0 cannot be read by its owner."""
    tmp_path.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", None)
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    monkeypatch.setenv("TMPDIR", str(folder))
    deep = "import os\nfor n in range(1500):\n    os.mkdir('d'); os.chdir('d')\nos.mkdir('shut', 0)\nprint('made')"
    assert Landlock(False).run(deep, b"", Limits(), 0).stdout == b"made\n"
    assert not list(folder.iterdir())
    folder.rmdir()
