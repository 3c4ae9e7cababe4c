"""The two sides on disk: base from git, head from the working tree, both under chosen paths.

Each holds all of its repository but the records. Those of the suite's own carry the `perf_tests` of the one that runs,
head's own unless another checkout is searched for a slow commit, so the same benchmark code measures both. They are
plain copies outside of the repository. Base is written through a separate index, so a kill leaves the repository
unchanged.
"""

import fcntl
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Set
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from filecmp import cmp
from fnmatch import fnmatch
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING

from perf_tests_suite.perf_tests import IMPORTABLE
from perf_tests_suite.perf_tests.bench.workers import inherited_environment
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.user_code.git import run_git
from perf_tests_suite.perf_tests.user_code.named import SUITE, Repository

if TYPE_CHECKING:  # it loads numpy, for which a refusal need not wait
    from perf_tests_suite.perf_tests.gate.samples import Side

MEASURING_CODE = ("perf_tests", "conftest.py", "pyproject.toml")
"""Both sides take these from the suite that runs."""

RECORDS = ".benchmarks/*/*"
"""Files in no tree; the accepted slowdowns beside their folders are."""

NOT_MEASURED = (":(exclude).benchmarks", ":(exclude,glob)**/__pycache__/**")
"""Pathspecs for git; a repository without a .gitignore shows byte code as its own."""

TREES = "perf-tests-gate-"
"""How the name of the folder of both trees begins, in the system's temporary folder."""


CODE = {".py", ".pth", ".so", ".pyd", ".dll", ".dylib", ".toml", ".cfg", ".ini"}
"""How names of code, and of what says how it runs, end."""


State = tuple[int, int, int] | None
"""Inode, size and time of the last change of a file, which no program sets; None without the file."""


def _state(path: Path) -> State:
    with suppress(OSError):
        found = path.lstat()
        return found.st_ino, found.st_size, found.st_ctime_ns
    return None


class TreeError(Exception):
    """A side cannot be written; the message is one sentence for the user."""


class BesideAnotherError(Exception):
    """Another gate measures on this machine; the message is one sentence."""


@dataclass(frozen=True)
class Commit:
    """A revision as typed and its commit. `prefix` is the suite's folder in the repository, "" or "folder/"."""

    typed: str
    full_hash: str
    prefix: str

    @property
    def short_hash(self) -> str:
        return self.full_hash[:12]


@dataclass
class Trees:
    """The current folders of the sides, copies of `repository`; `folder` is removed after the run."""

    folder: Path
    base: Path
    head: Path
    repository: Repository
    differed: Set[str] | None = None
    """Files, by name, that the two did not have alike at first; None where nobody knows."""
    _states: dict[tuple["Side", Path], State] = field(default_factory=dict)

    def seal(self) -> None:
        """Note the state of every file, for `written`."""
        trees: dict[Side, Path] = {"base": self.base, "head": self.head}
        for side, tree in trees.items():
            for folder, _, names in os.walk(tree):
                for path in (Path(folder, name) for name in names):
                    self._states[side, path.relative_to(tree)] = _state(path)

    def written(self) -> str | None:
        """Name a file that was written, moved or removed since `seal`, and its side; None where none was.

        A change of content that is taken back shows too. Files that were not there count for nothing, nor does what is
        `written_alike`.
        """
        return next(
            (f"{file} in the tree of {side}" for side, file in self._written() if not self._is_alike(file)), None
        )

    def written_alike(self) -> list[str]:
        """Name the files that were written, are no code, and have still one content on both sides."""
        return sorted({str(file) for _, file in self._written() if self._is_alike(file)})

    def _written(self) -> Iterator[tuple["Side", Path]]:
        for (side, file), state in self._states.items():
            if _state((self.base if side == "base" else self.head) / file) != state:
                yield side, file

    def _is_alike(self, file: Path) -> bool:
        if self.differed is None or str(file) in self.differed or file.suffix in CODE:
            return False
        one, other = self.base / file, self.head / file
        return one.is_file() and other.is_file() and cmp(one, other, shallow=False)

    def move(self, base_name: str, head_name: str) -> None:
        """Rename both trees, to names of one length, so that no path is tied to a side."""
        base, head = self.folder / base_name, self.folder / head_name
        self.base.rename(base)
        self.head.rename(head)
        self.base, self.head = base, head


@contextmanager
def planted(repository: Repository, base: Commit | None) -> Iterator[Trees]:
    """Both trees on disk. Without a commit, base is the working tree too.

    Raises TreeError and then leaves nothing behind.
    """
    folder = "a temporary folder"
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=TREES, ignore_cleanup_errors=True))
            stack.enter_context(_held(Path(folder)))
            trees = _plant(repository, base, Path(folder).resolve())
        except OSError as error:
            why = f"The trees to measure cannot be written to {folder}: {error}"
            raise TreeError(f"{why}; set TMPDIR to a folder with room.") from error
        yield trees


def _plant(repository: Repository, base: Commit | None, folder: Path) -> Trees:
    trees = Trees(folder, folder / "tree-of-base", folder / "tree-of-head", repository)
    of_head, of_base, measuring = _files_of_working_tree(repository), dict[Path, int](), dict[Path, int]()
    if repository.holds_suite:
        other = repository.measured_by
        ours = of_head if other is None else _files_of_working_tree(Repository(other))
        of_head = {file: size for file, size in of_head.items() if not measures(file, repository)}
        measuring = {file: size for file, size in ours.items() if measures(file, repository)}
    if base is not None:
        words = ("ls-tree", "--full-tree", "-r", "-l", "-z", f"{base.full_hash}:{base.prefix}")
        for entry in filter(None, run_git(repository.root, *words).stdout.split("\0")):
            about, _, name = entry.partition("\t")
            file, size = Path(name), about.split()[3]
            # A submodule has a dash for its size.
            if size.isdecimal() and is_needed(file) and not measures(file, repository):
                of_base[file] = int(size)
    # Byte code takes as much again.
    from_head = of_head if base is None else {}
    parts = (of_head, of_base, from_head, measuring, measuring)
    needed = 2 * sum(size for files in parts for size in files.values())
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise TreeError(
            f"The trees to measure need {needed / 2**20:.0f} MiB in {folder.parent}, and {free / 2**20:.0f} MiB are "
            "free; make room, or set TMPDIR to a folder with more."
        )
    trees.head.mkdir()
    trees.base.mkdir()
    _copy(repository.root, of_head, trees.head)
    if base is not None:
        _check_out(repository.root, base, of_base, trees.base)
    _copy(repository.root, from_head, trees.base)
    suite = repository.measured_by or repository.root
    for tree in (trees.head, trees.base):
        _copy(suite, [*measuring, *_byte_code(suite, measuring)], tree)
    trees.seal()
    return trees


def measures(file: Path, repository: Repository) -> bool:
    """Whether both sides take the file, named from the top folder, from the suite that runs."""
    return repository.holds_suite and file.parts[0] in MEASURING_CODE


def why_no_side(repository: Repository) -> str | None:
    """Why what the options name has no base: one sentence, if it has none."""
    taken = [file for file in repository.files if measures(file, repository)]
    if not taken:
        return None
    return f"{taken[0]} is the same on both sides, which take {taken[0].parts[0]} from head; move it out of there."


def is_needed(file: Path) -> bool:
    """Whether a tree holds the file, named from the top folder."""
    if "__pycache__" in file.parts:
        return False
    names = RECORDS.split("/")
    return len(file.parts) < len(names) or not all(map(fnmatch, file.parts, names))


def _files_of_working_tree(repository: Repository) -> dict[Path, int]:
    """Bytes of each needed file that is tracked or not ignored, by its path below the top folder."""
    root = repository.root
    listed = run_git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed.returncode:
        raise TreeError(f"git does not list the files of {root}: {listed.stderr.strip()}.")
    files = [Path(name) for name in listed.stdout.split("\0") if name]
    there = [file for file in files if (root / file).is_symlink() or (root / file).is_file()]
    ignored = set(repository.files).difference(there)
    if ignored:
        raise TreeError(f"git ignores {min(ignored)}, so base cannot hold it; take it out of .gitignore and commit it.")
    return {file: (root / file).lstat().st_size for file in there if is_needed(file)}


def _copy(root: Path, files: Iterable[Path], tree: Path) -> None:
    for file in files:
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / file, tree / file, follow_symlinks=False)


def _byte_code(root: Path, files: Iterable[Path]) -> list[Path]:
    """Name what Python keeps of these files, which workers, who write none, would compile in each launch."""
    if sys.pycache_prefix is not None:
        return []
    kept = [Path(cache_from_source(str(file))) for file in files if file.suffix == ".py"]
    return [file for file in kept if (root / file).is_file()]


def _check_out(root: Path, base: Commit, files: Iterable[Path], tree: Path) -> None:
    """Write these files of the revision; raises TreeError with git's message, as when the disk is full.

    Into a folder that git takes for the whole working tree: the attributes, such as line ends, are the revision's own.
    """
    index, whole = tree.parent / "index", tree.parent / "checkout"
    whole.mkdir()
    known = {"GIT_DIR": run_git(root, "rev-parse", "--absolute-git-dir").stdout.strip(), "GIT_WORK_TREE": str(whole)}
    names = "".join(f"{base.prefix}{file.as_posix()}\0" for file in files)
    for words in (("read-tree", base.full_hash), ("checkout-index", "--force", "-z", "--stdin")):
        ended = run_git(whole, *words, given=names, GIT_INDEX_FILE=str(index), **known)
        if ended.returncode:
            lines = ended.stderr.strip().splitlines() or [f"git {words[0]} exited with {ended.returncode}"]
            raise TreeError(f"--against {base.typed} cannot be written to {tree.parent}: {lines[-1]}.")
    (whole / base.prefix).mkdir(parents=True, exist_ok=True)  # without any file
    (whole / base.prefix).rename(tree)  # which is empty
    shutil.rmtree(whole, ignore_errors=True)
    index.unlink()


# What git says of revisions.


def find_base(repository: Repository, revision: str) -> Commit:
    """The base of what is measured; raises TreeError, in about 20 ms, where no revision can be one."""
    if (why := repository.why_no_base()) is not None:
        raise TreeError(f"--against {revision}: {why}.")
    if (why := why_no_side(repository)) is not None:
        raise TreeError(f"--against {revision}: {why}")
    return find_commit(repository.root, revision)


def find_commit(root: Path, revision: str, option: str = "--against") -> Commit:
    """The commit of `revision`, typed after `option`, in `root`'s repository; raises TreeError with the next step."""
    if shutil.which("git") is None:
        raise TreeError(f"{option} {revision} needs git, and there is none on the PATH; install it.")
    inside = run_git(root, "rev-parse", "--show-prefix")
    if "dubious ownership" in inside.stderr:
        raise TreeError(
            f"{option} {revision}: git does not read {root}, which belongs to another user; allow it with "
            f"`git config --global --add safe.directory {root}`."
        )
    if inside.returncode:
        raise TreeError(f"{option} {revision} needs a git repository, and {root} is in none; clone the project.")
    asked = ("rev-parse", "--verify", "--quiet")
    if run_git(root, *asked, "HEAD").returncode:
        raise TreeError(f"{option} {revision} needs a base, and the repository {root} has no commit yet; commit one.")
    found = run_git(root, *asked, "--end-of-options", f"{revision}^{{commit}}")
    full_hash = found.stdout.strip().splitlines()[-1:] if found.returncode == 0 else []
    is_shallow = run_git(root, "rev-parse", "--is-shallow-repository").stdout.strip() == "true"
    if not full_hash:
        if run_git(root, *asked, "--end-of-options", f"origin/{revision}^{{commit}}").returncode == 0:
            raise TreeError(
                f"{option} {revision} names no revision here, but origin/{revision} is there: {option} "
                f"origin/{revision}."
            )
        if not revision or not is_shallow:
            names = run_git(root, "for-each-ref", "--format=%(refname:lstrip=2)").stdout.split()
            close = "".join(f"did you mean {name}? Else " for name in get_close_matches(revision, names, 1))
            raise TreeError(
                f"{option} {shlex.quote(revision)} names no revision of this repository; "
                f"{close}give a branch, a tag or a commit (`git log`)."
            )
        fetch = (
            f"fetch it first with `git fetch --depth=1 origin {revision}` and give {option} FETCH_HEAD, or clone with "
            "the whole history"
        )
        if set(revision) & set("~^@:"):  # counted from another revision, which no server knows by this name
            fetch = "fetch the history first with `git fetch --unshallow`, or clone with it"
        raise TreeError(
            f"{option} {revision} is not in this shallow clone; {fetch} (actions/checkout: fetch-depth: 0)."
        )
    if not is_shallow and run_git(root, "merge-base", "HEAD", full_hash[0]).returncode == 1:
        raise TreeError(
            f"{option} {shlex.quote(revision)} is a commit of another project: it shares no history with HEAD; "
            "give a revision of this one (`git log`)."
        )
    return Commit(revision, full_hash[0], inside.stdout.strip())


def changed_since(root: Path, base: Commit) -> dict[str, bool]:
    """Files of the working tree below `root` that differ from `base`, and whether each is a submodule."""
    words = ("--raw", "-z", "--no-renames", "--relative", "--ignore-submodules=none", base.full_hash, "--", ".")
    raw = run_git(root, "diff", *words).stdout.split("\0")
    others = run_git(root, "ls-files", "-z", "--others", "--exclude-standard", "--", ".").stdout.split("\0")
    about = zip(raw[:-1:2], raw[1::2], strict=True)
    return {name: "160000" in modes[1:].split()[:2] for modes, name in about} | dict.fromkeys(
        filter(None, others), False
    )


def state_of_head(root: Path) -> Json:
    """The working tree's commit and its number of changed files; nulls where git cannot tell."""
    commit = run_git(root, "rev-parse", "HEAD")
    status = run_git(root, "status", "--porcelain", "--untracked-files=normal", "--", ".", *NOT_MEASURED)
    changed = len(status.stdout.splitlines()) if status.returncode == 0 else None
    return {"commit": commit.stdout.strip() or None if commit.returncode == 0 else None, "changed_files": changed}


# What a process that serves a side sees.


def environment_without_the_suite(*first: Path) -> dict[str, str]:
    """Variables of this process, without pytest's and the suite on the path: it would replace what a tree lacks."""
    return inherited_environment(first, lambda entry: entry in (SUITE, IMPORTABLE))


def environment_of_side(repository: Repository, tree: Path) -> dict[str, str]:
    """The environment of a worker in `tree`, whose path never leads to the repository that the tree stands for."""
    if repository.holds_suite:
        return environment_without_the_suite(tree / IMPORTABLE.relative_to(SUITE))
    inherited = inherited_environment(repository.path_in(tree), lambda entry: entry.is_relative_to(repository.root))
    # Without the folder that the worker starts in, which the path names where pytest's does.
    return {**inherited, "PYTHONSAFEPATH": "1"}


# One gate at a time: two would share the machine, and neither could tell its neighbour from a slow side.


@contextmanager
def alone() -> Iterator[None]:
    """Hold the lock of the temporary folder, after removing the trees of runs that were killed.

    The lock ends with its process; its file stays. Raises BesideAnotherError where another run holds it, TreeError
    where it cannot be opened.
    """
    try:
        folder = Path(tempfile.gettempdir())
        lock = _opened(folder / "perf-tests-gate.lock")
    except OSError as error:
        raise TreeError(f"The gate cannot lock the machine: {error}; set TMPDIR to a folder to write to.") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            process = os.pread(lock, 20, 0).decode(errors="replace").strip() or "unknown"
            raise BesideAnotherError(
                f"Another gate, process {process}, is measuring on this machine, and two at once would disturb each "
                "other; wait for its end."
            ) from error
        with suppress(OSError):  # of another user, who left it
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        for left in folder.glob(f"{TREES}*"):
            with suppress(OSError), _held(left):
                shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        os.close(lock)


@contextmanager
def _held(trees: Path) -> Iterator[None]:
    """Hold the lock of a folder of trees, as what uses them does; raises BlockingIOError where a process uses them."""
    folder = os.open(trees, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(folder)


def _opened(path: Path) -> int:
    """Open a lock for every user: a shared temporary folder lets nobody create, or open to write, another's file."""
    with suppress(FileExistsError):
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        with suppress(OSError):
            os.fchmod(lock, 0o666)
        return lock
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
