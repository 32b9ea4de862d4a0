"""Marking a class: each student's marks are right, whatever the code of others does, and no code leaves its sandbox."""

import csv
import io
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import psutil
import pytest
from conftest import REPOSITORY, run

from common.platform.machine import num_cores
from exercises import checking, marking, marks_table, sandbox, verdicts
from exercises.course import ACTIVITIES
from exercises.sandbox import Limits
from exercises.verdicts import Verdict

pytestmark = pytest.mark.xdist_group("marking")  # one at a time, because they count processes
SOLUTION = (REPOSITORY / "exercises" / "sampler" / "solution.py").read_text()
SHARE = "    return list(range(rank, length, world_size))\n"  # what the last check, `testing`, calls
CHECKS = verdicts.titles("sampler")


@pytest.fixture(scope="module")
def with_sandbox():
    try:
        sandbox.check_available()
    except sandbox.SandboxError as error:
        pytest.skip(str(error))


def changed(code, old=SHARE):
    """The solution with the text `old` replaced by `code`."""
    assert SOLUTION.count(old) == 1
    return SOLUTION.replace(old, code)


def make_class(folder, works):
    for student, text in works.items():
        (folder / student).mkdir(parents=True)
        (folder / student / "sampler.py").write_text(text)
    return folder


def mark(*arguments, expect=0):
    done = run(sys.executable, "-m", "exercises", "mark", *arguments, expect=expect)
    return done.stdout, done.stderr


# --- A class ---


def intrusion(tmp_path, port):
    """Code that tries forbidden actions and reports the error of each, and the report that is expected from it."""
    another, marks = tmp_path / "class" / "right" / "sampler.py", tmp_path / "marks" / "marks.jsonl"
    solution = REPOSITORY / "exercises" / "sampler" / "solution.py"
    read_only = "PermissionError" if os.getuid() == 0 else "OSError"  # as root, the file is another user's
    tried = {
        f"open({str(another)!r})": "FileNotFoundError",
        f"open({str(solution)!r})": "FileNotFoundError",
        "from exercises.sampler import solution": "ImportError",
        f"open({str(marks)!r}, 'a')": "FileNotFoundError",
        "open(__file__, 'a')": read_only,
        "open(course.__file__, 'a')": read_only,
        "open(f'/proc/{os.getppid()}/mem', 'rb')": "PermissionError",
        f"socket.create_connection(('127.0.0.1', {port}), timeout=5)": "ConnectionRefusedError",
        "socket.create_connection(('192.0.2.1', 80), timeout=5)": "OSError",
    }
    lines = ["import os, socket", "from exercises import course", "came = []", f"for code in {list(tried)!r}:"]
    lines += ["    try:", "        exec(code, {**globals(), **locals()})", "        came.append('done')"]
    lines += ["    except Exception as error: came.append(type(error).__name__)", "raise RuntimeError(' '.join(came))"]
    return "".join(f"    {one}\n" for one in lines), f"RuntimeError: {' '.join(tried.values())} (line "


FORGED = '{"check": "testing", "status": "passed", "seen": ""}\\n'
FORGES = f"""    import ctypes, os
    def forge(descriptor):
        try:
            os.write(descriptor, b'{FORGED}' * 8)
        except OSError:
            pass
    for number in range(1, 256):
        forge(number)
    system = ctypes.CDLL(None).syscall
    for process in map(int, filter(str.isdigit, os.listdir('/proc'))):
        if process != os.getpid():
            opened = system(434, process, 0)  # pidfd_open
            for number in range(1, 64):
                forge(system(438, opened, number, 0))  # pidfd_getfd
    return []
"""
PICKLES = """    import gc, os
    from multiprocessing.connection import Connection
    class Exits:
        def __reduce__(self):
            return os._exit, (7,)
    for one in gc.get_objects():
        if isinstance(one, Connection) and one.writable:
            one.send(Exits())
    os._exit(0)
"""


@pytest.mark.slow
def test_a_class_of_all_kinds(with_sandbox, tmp_path):
    listener = socket.create_server(("127.0.0.1", 0))
    intrudes, came = intrusion(tmp_path, listener.getsockname()[1])
    folder = make_class(
        tmp_path / "class",
        {
            "right": SOLUTION,
            "wrong": changed("", old="        sampler.set_epoch(epoch)\n"),
            "gaps": (REPOSITORY / "exercises" / "sampler" / "exercise.py").read_text(),
            "not Python": changed("    return list(range(rank, length, world_size)\n"),
            "Jörg Groß  d'Été": changed("    return [1]\n"),
            "prints": changed(f"    print('{FORGED}' * 8, flush=True)\n    return []\n"),
            "forges": changed(FORGES),
            "pickles": changed(PICKLES),
            "closes": changed("    import os, time; os.closerange(3, 256); time.sleep(60)\n"),
            "=cmd|' C calc'!A0": SOLUTION,
            "intrudes": changed(intrudes),
        },
    )
    (folder / "nothing").mkdir()
    (folder / "linked").mkdir()
    (folder / "linked" / "sampler.py").symlink_to("../right/sampler.py")
    (folder / "right" / "notes.txt").write_text("")
    (folder / "gaps" / "sampler").mkdir()
    (folder / "gaps" / "sampler" / "exercise.py").write_text(SOLUTION)
    (folder / "right" / "samplr.py").write_text("")
    results = tmp_path / "marks"
    printed, told = mark(folder, "--results", results)
    listener.close()

    cells = dict(line.rstrip().rsplit(maxsplit=1) for line in printed.splitlines()[1:-1])
    assert all(len(line) <= 80 for line in printed.splitlines()[:-1])
    cells = {student.strip(): text for student, text in cells.items()}
    assert cells == {
        "right": "8/8",
        "wrong": "6/8",
        "gaps": "0/8",
        "not Python": "0/8",
        "Jörg Groß  d'Été": "7/8",
        "prints": "7/8",
        "forges": "7/8",
        "pickles": "7/8",
        "closes": "7/8",
        "intrudes": "7/8",
        "nothing": "-",
        "linked": "-",
        "=cmd|' C calc'!A0": "8/8",
    }
    assert "note: not marked" in told and "notes.txt (right)" in told and "sampler.py (linked)" in told
    assert "sampler/exercise.py (gaps)" in told and "samplr.py (sampler.py?) (right)" in told

    with open(results / "grades.csv", encoding="utf-8-sig") as file:
        grades = {row["student"]: row for row in csv.DictReader(file)}
    assert (results / "grades.csv").read_bytes().startswith(b"\xef\xbb\xbf")  # by which Excel knows UTF-8
    of = {"sampler": "7", "points": "7", "of": "8"}
    assert grades["Jörg Groß  d'Été"] == {"student": "Jörg Groß  d'Été", **of}
    assert (grades["wrong"]["sampler"], grades["nothing"]["sampler"], grades["nothing"]["points"]) == ("6", "", "0")
    feedback = (results / "feedback" / "wrong.txt").read_text()
    assert feedback.startswith("sampler: 6 of 8 checks passed, 6 of 8 points\n  FAILED  every epoch has another order")
    suites = {suite.get("name"): suite for suite in ET.parse(results / "junit.xml").getroot()}
    assert len(suites) == 11 and suites["wrong: sampler"].get("failures") == "2"
    # Once more: nothing that has a mark is marked again, but a work that has changed, and whoever is named.
    (folder / "wrong" / "sampler.py").write_text(SOLUTION)
    _, told = mark(folder, "--results", results)
    assert "wrong: sampler: 8/8" in told and "gaps: sampler:" not in told and "right: sampler:" not in told
    printed, told = mark(folder, "--results", results, "--students", "right")
    assert "right: sampler: 8/8" in told and "wrong: sampler:" not in told and "7/8" in printed

    with open(results / "checks.csv", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    by_student = {}
    for row in rows:
        assert row["title"] == CHECKS[row["check"]] and row["activity"] == "sampler"
        by_student.setdefault(row["student"], {})[row["check"]] = (row["status"], row["seen"])
    assert all(list(found) == list(CHECKS) for found in by_student.values())
    assert set(by_student) == {*cells, "'=cmd|' C calc'!A0"} - {"=cmd|' C calc'!A0"}
    assert set(by_student["right"].values()) == {("passed", "")}
    assert set(by_student["wrong"].values()) == {("passed", "")}  # by now
    assert by_student["gaps"]["lengths"] == ("open", "gap 1 is not filled")
    line = SOLUTION.splitlines().index(SHARE.rstrip()) + 1
    invalid = f"the file is not valid Python: line {line}: '(' was never closed"
    assert set(by_student["not Python"].values()) == {("FAILED", invalid)}
    assert by_student["prints"]["testing"] == ("FAILED", "10 test examples for 4 processes: counted are []")
    assert by_student["forges"]["testing"][0] == "FAILED"
    assert by_student["pickles"]["testing"] == ("FAILED", "the process has sent something else than a result")
    assert by_student["closes"]["testing"] == ("FAILED", "the process has closed its connection to the checker")
    assert set(by_student["nothing"].values()) == set(by_student["linked"].values()) == {("missing", "")}
    status, seen = by_student["intrudes"]["testing"]
    assert status == "FAILED" and seen.startswith(came), seen


WASTEFUL = {
    "loops": "    while True: pass\n",
    "allocates": "    held = []\n    while True: held.append(bytearray(2**24))\n",
    "allocates shared": """    import mmap
    held = []  # which no limit of a single process counts
    while True:
        held.append(mmap.mmap(-1, 2**26))
        held[-1].write(bytes(2**26))
""",
    "allocates files": """    import os
    held = []  # in memory, and not mapped
    while True:
        held.append(os.memfd_create('x'))
        os.write(held[-1], bytes(2**26))
""",
    "allocates in sockets": """    import socket
    held = []  # pairs, with data that no one receives
    while True:
        held.append(socket.socketpair())
        for one in held[-1]:
            one.setblocking(False)
            try:
                while True: one.send(bytes(2**16))
            except BlockingIOError:
                pass
""",
    "allocates in System V": """    import ctypes
    system, held = ctypes.CDLL(None, use_errno=True), 0
    while (number := system.shmget(0, 2**26, 0o1600)) >= 0:
        system.shmat.restype = ctypes.c_void_p
        ctypes.memset(system.shmat(number, None, 0), 1, 2**26)
        held += 1
    raise OSError(ctypes.get_errno(), str(held))
""",
    "fills the disk": "    with open('large', 'wb') as file:\n        while True: file.write(bytes(2**20))\n",
    "forks": "    import os\n    while True: os.fork()\n",
}


@pytest.mark.quick("forks")
@pytest.mark.parametrize("student", WASTEFUL)
def test_a_work_that_takes_all_it_can_is_ended_and_the_next_one_marked(with_sandbox, tmp_path, student):
    before = set(psutil.Process().children(recursive=True))
    folder = make_class(tmp_path / "class", {f"1 {student}": changed(WASTEFUL[student]), "2 right": SOLUTION})
    work = {one.name: one / "sampler.py" for one in folder.iterdir()}
    limits = Limits(seconds=20, memory_mib=1024, processes=100)
    found = {
        one: marking.mark_work("sampler", path, limits, True, threading.Event()) for one, path in sorted(work.items())
    }
    assert [one.status for one in found["2 right"]] == ["passed"] * 8
    assert [one.status for one in found[f"1 {student}"]] == ["passed"] * 7 + ["FAILED"]
    seen = found[f"1 {student}"][-1].seen
    assert seen.startswith(
        {
            "loops": ("the checks were ended: not done after 20 s", "the process has ended by signal 24 (SIGXCPU"),
            "allocates": "MemoryError",
            "allocates shared": "the checks were ended: its processes took more than 1024 MiB of memory",
            "allocates files": "the checks were ended: its processes took more than 1024 MiB of memory",
            # Where no control group can be made, the number of descriptors is what ends it.
            "allocates in sockets": (
                "the checks were ended: its processes took more than 1024 MiB of memory",
                *(("OSError: [Errno 24]",) if os.getuid() else ()),
            ),
            "allocates in System V": "OSError: [Errno 28] 0",
            "fills the disk": "OSError: [Errno 2",  # no space left, or the file is too large
            "forks": "BlockingIOError: [Errno 11]",
        }[student]
    ), seen
    assert set(psutil.Process().children(recursive=True)) <= before


# A work that takes the place of any socket on which a server listens, and answers for the processes it would start.
TAKES_OVER = """
import os, pickle, socket, struct, sys, time
from multiprocessing.connection import Connection

def answer(ready):
    path = next(line.split()[-1] for line in open("/proc/net/unix") if "/tmp/" in line)
    os.unlink(path)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    os.write(ready, b"x")
    while True:
        client, _ = listener.accept()
        _, descriptors, _, _ = socket.recv_fds(client, 1, 32)
        task = b""
        while b"_judge" not in task and b"_observe" not in task:
            task += os.read(descriptors[0], 2**16)
        os.write(descriptors[1], struct.pack("q", os.getpid()))
        sender = Connection(descriptors[4], readable=False)
        sender.send(sys.modules["exercises.checking"].Seen("passed")) if b"_judge" in task else observed(sender)
        [os.close(descriptor) for descriptor in descriptors[:4]]
        sender.close()

def observed(pipe):
    pipe.send_bytes(b"loaded")
    pipe.send_bytes(b'{"data": null}')

reads, ready = os.pipe()
if not os.fork():
    os.setsid()
    if not os.fork():
        os.close(reads)
        try:
            answer(ready)
        finally:
            os._exit(1)
    os._exit(0)
os.close(ready)
os.read(reads, 1)
frame = sys._getframe()
while "pipe" not in frame.f_locals:
    frame = frame.f_back
observed(frame.f_locals["pipe"])
time.sleep(9)
"""


def test_no_work_takes_the_place_of_the_server(with_sandbox, tmp_path):
    work = tmp_path / "scaling.py"
    work.write_text(TAKES_OVER)
    found = marking.mark_work("scaling", work, Limits(seconds=60, memory_mib=1024), True, threading.Event())
    assert {verdict.status for verdict in found} == {"FAILED"}
    assert all("another form than a right answer" in verdict.seen for verdict in found)


# --- What a sandbox is ---


USUAL = Limits(seconds=30, memory_mib=1024)


def inside(code, tmp_path, limits=USUAL, hidden=()):
    """The lines that a Python program prints in the sandbox, and why it has ended; None if it ended normally."""
    with open(tmp_path / "printed", "w+b") as result:
        text = f"import os, sys\nout = os.fdopen({result.fileno()}, 'w')\ndef print(text): out.write(f'{{text}}\\n')\n"
        ended = sandbox.run([sys.executable, "-c", text + code], "/tmp", {}, limits, hidden, result=result)
    return (tmp_path / "printed").read_text().splitlines(), ended


def test_the_user_is_another_one_without_rights(with_sandbox, tmp_path):
    code = (
        "print(os.getuid()); [print(line.strip()) for line in open('/proc/self/status') if line[:3] in ('Cap', 'NoN')]"
    )
    (user, *lines), ended = inside(code, tmp_path)
    status = dict(line.split(":\t") for line in lines)
    assert ended is None and int(user) != 0 and (os.getuid() == 0) == (int(user) != os.getuid())
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert status["NoNewPrivs"] == "1"


def test_nothing_can_be_written_but_its_own_folders(with_sandbox, tmp_path):
    code = """
for folder, _, _ in os.walk('/'):
    if not folder.startswith('/proc') and os.access(folder, os.W_OK):
        print(folder)
"""
    found, ended = inside(code, tmp_path)
    assert sorted(found) == ["/dev/shm", "/tmp"] and ended is None
    mounts, _ = inside("[print(line.strip()) for line in open('/proc/mounts')]", tmp_path)
    writable = {line.split()[1] for line in mounts if not line.split()[3].startswith("ro,")}
    assert writable == {"/tmp", "/dev/shm", "/proc"}


def test_of_the_system_only_programs_and_libraries_are_seen(with_sandbox, tmp_path):
    (found,), ended = inside("print(' '.join(os.listdir('/usr') + os.listdir('/usr/local')))", tmp_path)
    assert set(found.split()) <= {"bin", "sbin", "lib", "lib32", "lib64", "libx32", "libexec", "local"} and not ended


def test_a_class_among_the_systems_libraries_is_hidden(with_sandbox, tmp_path):
    if not os.access("/usr/local/lib", os.W_OK):
        pytest.skip("needs to write to /usr/local/lib")
    with tempfile.TemporaryDirectory(dir="/usr/local/lib") as folder:
        os.chmod(folder, 0o755)
        Path(folder, "work.py").write_text("secret")
        code = f"print(os.path.exists({folder + '/work.py'!r}))"
        assert inside(code, tmp_path) == (["True"], None)
        assert inside(code, tmp_path, hidden=[Path(folder)]) == (["False"], None)


def test_no_variables_and_no_other_processes_are_seen(with_sandbox, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "abc")
    code = "print(sorted(os.environ)); print(len(list(filter(str.isdigit, os.listdir('/proc')))))"
    (names, number), _ = inside(code, tmp_path)
    assert "SECRET" not in names and int(number) == 2  # the sandbox's first process, and this one


def test_the_processor_time_is_limited(with_sandbox, tmp_path):
    _, ended = inside("while True: pass", tmp_path, Limits(seconds=30, memory_mib=512, cpu_seconds=1))
    assert "SIGXCPU" in ended or "SIGKILL" in ended


def test_the_number_of_processes_is_limited(with_sandbox, tmp_path):
    code = """
import time
try:
    for number in range(1, 200):
        if not os.fork():
            time.sleep(60)
    print('as many as it likes')
except BlockingIOError:
    print(number)
"""
    (number,), _ = inside(code, tmp_path, Limits(seconds=30, memory_mib=1024, processes=20))
    assert int(number) <= 20


def test_no_further_namespaces(with_sandbox, tmp_path):
    code = "import ctypes; print(ctypes.CDLL(None).unshare(0x10000000))"
    assert inside(code, tmp_path)[0] == ["-1"]


def test_the_first_process_can_not_be_looked_into(with_sandbox, tmp_path):
    code = """
import ctypes
for name in ('fd/1', 'root/', 'environ', 'mem'):
    try:
        print(open(f'/proc/1/{name}').fileno())
    except PermissionError:
        print('denied')
system = ctypes.CDLL(None).syscall
print(system(438, system(434, 1, 0), 1, 0))  # pidfd_getfd of pidfd_open
"""
    assert inside(code, tmp_path) == (["denied"] * 4 + ["-1"], None)


def test_a_folder_mounted_in_one_that_is_shown_is_read_only_too(with_sandbox, tmp_path):
    if os.getuid():
        pytest.skip("needs root, to mount a folder")
    (tmp_path / "shown" / "a b").mkdir(parents=True)
    program = f"""
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
sys.path.insert(0, {str(REPOSITORY)!r})
from exercises import sandbox
command = [sys.executable, '-c', 'open("/shown/a b/x", "w")']
print(sandbox.run(command, '/tmp', {{Path({str(tmp_path)!r}, 'shown'): '/shown'}}, sandbox.Limits(30, 1024)))
"""
    mount = 'mount -t tmpfs -o mode=777 tmpfs "$1" && "$2" -c "$3"'
    start = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    printed = run(*start, tmp_path / "shown" / "a b", sys.executable, program).stdout
    assert "OSError: [Errno 30] Read-only file system" in printed


def test_a_sandbox_ends_with_the_process_that_made_it(with_sandbox):
    code = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from exercises import sandbox
program = [sys.executable, '-c', 'import os, time; os.fork(); time.sleep(60)']
sandbox.run(program, '/tmp', {{}}, sandbox.Limits(60, 1024))
"""
    family, began = [], time.monotonic()
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        while len(family) < 4 and time.monotonic() < began + 20:  # unshare, the shell, and two of the program
            family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    assert len(family) == 4
    assert not psutil.wait_procs(family, timeout=10)[1]


# --- What is no student's fault ---


def test_what_is_not_marked_has_its_reason(tmp_path, monkeypatch):
    folder = make_class(tmp_path / "class", {"anna": "", "bob": "", "carl": "", ".dora": "", "eve": ""})
    (folder / "carl" / "sampler.py").write_bytes(bytes(marking.MAX_WORK_BYTES + 1))
    (folder / "eve" / "ddp").mkdir()
    (folder / "eve" / "notes.txt").write_text("")
    iterdir = Path.iterdir

    def denied(path):  # root may read every folder
        if path in (folder / "bob", folder / "eve" / "ddp"):
            raise PermissionError(13, "Permission denied")
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", denied)
    found = marking.find(folder)
    assert found.students == ["anna", "bob", "carl", "eve"]
    assert set(found.works) == {("anna", "sampler"), ("eve", "sampler")}
    assert found.others == {
        marking.HIDDEN: {".dora": ["the class"]},
        marking.UNREADABLE: {"bob": ["the class"], "ddp": ["eve"]},
        marking.TOO_LARGE: {"sampler.py": ["carl"]},
        marking.NO_WORK: {"notes.txt": ["eve"]},
    }


def test_control_groups_of_killed_processes_are_removed():
    ended = subprocess.Popen(["true"])
    ended.wait()
    with sandbox._control_group(256) as group:
        if group is None:
            pytest.skip("needs to make control groups")
        left, here = (group.parent / f"mark-{pid}-test" for pid in (ended.pid, os.getpid()))
        for path in (left, here):
            path.mkdir()
        with sandbox._control_group(256):
            there = [path.exists() for path in (left, here)]
        for path in filter(Path.exists, (left, here)):
            path.rmdir()
    assert there == [False, True]


def test_nothing_is_marked_where_the_solution_fails(with_sandbox, tmp_path):
    folder = make_class(tmp_path / "class", {"right": SOLUTION})
    printed, told = mark(folder, "--memory-mib", "256", expect=2)
    assert "nothing is marked: the solution of sampler itself passes " in told and not printed
    assert "--memory-mib 256 and --seconds 300" in told


PASSED = {"status": "passed"}


def test_what_ran_out_of_time_is_marked_once_more_alone(tmp_path, monkeypatch):
    found = marking.find(make_class(tmp_path / "class", {"a": "", "b": ""}))
    tried = []

    def mark_work(activity, work, *_):
        tried.append(work.parent.name)
        late = tried.count(work.parent.name) == 1 and work.parent.name == "b"
        return [Verdict(check="lengths", **({"status": "FAILED", "seen": "not done after 20 s"} if late else PASSED))]

    monkeypatch.setattr(marking, "mark_work", mark_work)
    marks = {}
    marking.mark_class([tmp_path], found.works, USUAL, True, marks.__setitem__)
    assert sorted(tried) == ["a", "b", "b"] and {one.status for (one,) in marks.values()} == {"passed"}


def test_time_is_given_as_the_load_needs_it(monkeypatch):
    for load, factor in ((0.0, 1.0), (3.0 * num_cores(), 3.0), (1e6, checking.LARGEST_FACTOR)):
        monkeypatch.setattr(checking.os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert checking.load_factor() == factor


# --- Without one ---


def test_where_there_is_no_sandbox_it_is_refused_in_a_line(tmp_path, monkeypatch):
    folder = make_class(tmp_path / "class", {"right": SOLUTION})
    monkeypatch.setattr(sandbox.sys, "platform", "darwin")
    with pytest.raises(
        sandbox.SandboxError, match="--no-sandbox false: .* needs Linux, and this is darwin; give --no-sa"
    ):
        marking.main([str(folder)])
    monkeypatch.undo()
    if sys.platform == "linux":
        fails = {"true": "no namespaces", "false": "no namespaces", "not-installed": "there is no not-installed"}
        for program, why in fails.items():
            monkeypatch.setattr(sandbox, "_entrance", lambda *_, program=program: [program])
            with pytest.raises(sandbox.SandboxError, match=f"this machine makes no sandbox .{why}"):
                marking.main([str(folder)])


def test_without_a_sandbox_there_is_a_warning(tmp_path):
    folder = make_class(tmp_path / "class", {"right": SOLUTION})
    printed, told = mark(folder, "--no-sandbox", "true")
    assert printed.split() == ["student", "sampler", "right", "8/8"]
    assert told.startswith("warning: --no-sandbox true: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "FOLDER nowhere: there is no such folder"),
        (["{class}/right"], "/right: has no sub-folders"),
        (["{class}", "--activities", "samplr"], "--activities samplr: samplr is no activity; sampler?"),
        (["{class}", "--results", "x" * 300], "x...: File name too long"),
        (["{class}", "--results", "{class}.py/marks"], "can't be written: Not a directory"),
        (["{class}", "--results", "{class}/marks"], "lies in FOLDER, whose sub-folders are those of students"),
        (["{class}", "--students", "nobody"], "--students nobody: FOLDER "),
        (["x" * 300], "x: can't be read: File name too long"),
        (["{class}", "--seconds", "0"], "--seconds 0: should be greater than 0"),
        (["{class}", "--memory-mib", "1"], "--memory-mib 1: should be greater than or equal to 256"),
        (["{class}", "--memory-mib", "9" * 17], f"--memory-mib {'9' * 17}: should be less than or equal to 16777216"),
        (["{class}", "--no-sandbox", "maybe"], "--no-sandbox maybe: "),
        (["{class}", "{class}"], "--folder"),
        ([], "required: FOLDER"),
    ],
)
def test_mistakes_in_the_options_are_reported_in_one_line(tmp_path, arguments, message):
    folder = make_class(tmp_path / "class", {"right": SOLUTION})
    (tmp_path / "class.py").write_text("")
    printed, told = mark(*(argument.replace("{class}", str(folder)) for argument in arguments), expect=2)
    (line,) = told.splitlines()
    assert message in line and not printed and [path.name for path in folder.iterdir()] == ["right"]


# --- Verdicts and tables ---


def test_titles_are_those_of_the_checks():
    from exercises.course import make_checker

    assert titles_of(make_checker("sampler")) == CHECKS
    assert all(verdicts.titles(name) for name in ACTIVITIES)


def titles_of(checker):
    return {name: one.title for name, one in checker.checks.items()}


def line(check, status="passed", **more):
    return Verdict(check=check, status=status, **more).model_dump_json().encode() + b"\n"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no JSON\n",
        line("same_number"),
        line("testing") * 8,
        b'{"check": "lengths", "status": "great", "seen": ""}\n',
        b'{"check": "lengths", "status": "passed", "seen": "", "more": 1}\n',
        b'{"check": "lengths", "status": "passed", "seen": "' + b"x" * 2000 + b'"}\n',
        b"\xff\xfe\n",
    ],
)
def test_what_is_no_verdict_does_not_count(content):
    content = content and line(next(iter(CHECKS)), "begun") + content
    found = verdicts.read(content + b"".join(map(line, CHECKS)), "sampler", "not done after 1 s")
    if not content:
        assert [one.status for one in found] == ["passed"] * 8
    else:
        assert [one.check for one in found] == list(CHECKS)
        assert [one.status for one in found] == ["FAILED"] + ["not run"] * 7
        assert {one.seen for one in found} == {"the checks were ended: not done after 1 s"}
        assert marks_table.cell(found) == "not run"


def test_many_activities_fit_in_80_columns():
    from rich.console import Console

    students = ["anna", "a very long name of a student who has many names and uses all of them"]
    marks = {("anna", name): [Verdict(check="one", status="passed")] for name in ACTIVITIES}
    text = io.StringIO()
    for table in marks_table.tables(students, list(ACTIVITIES), marks):
        Console(width=80, file=text).print(table)
    text = text.getvalue()
    assert all(text.count(name) == 1 for name in ACTIVITIES if name not in ("ddp", "batch_size"))
    assert text.count("1/1") == len(ACTIVITIES) and "…" not in text


def test_names_of_students_stay_different():
    students = ["bob", "bob ", "eve\t", "eva"]
    lines = marks_table.to_csv(students, ["sampler"], {}).splitlines()[1 :: len(CHECKS)]
    assert [line.partition(",")[0] for line in lines] == ["'bob'", "'bob '", "eve", "eva"]


def test_a_cell_is_one_line_and_no_formula():
    verdict = Verdict(check="lengths", status="FAILED", seen='=HYPERLINK("x")\nand \x1b[31mred')
    text = marks_table.to_csv(["s"], ["sampler"], {("s", "sampler"): [verdict]})
    assert text.splitlines()[1].endswith(',FAILED,"\'=HYPERLINK(""x"") and  [31mred"')
