"""Descriptors: one allowance of the process for all engines, and shortage as back-pressure."""

from __future__ import annotations

import pytest

from tests.engine.test_native import backends, in_child
from tests.slices import first

HELPERS = """
random = np.random.default_rng(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
contents = [random_bytes(9_000 + number, number) for number in range(60)]
files = write_files(Path.cwd(), contents)

def limit(count):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))

def count_open():
    # Without a listing, which would take a descriptor and let an open file move meanwhile. In
    # ascending order: the system gives the lowest free number, so none is counted twice.
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    targets = []
    for number in range(soft):
        with contextlib.suppress(OSError):
            targets.append(os.readlink(f"/proc/self/fd/{number}"))
    return sum(target.endswith(".bin") for target in targets)
"""


@backends
def test_many_engines_share_the_descriptors_of_the_process(backend: str) -> None:
    """Engines that would keep more files open than the process may, all read, from threads too."""
    in_child(
        HELPERS
        + """
limit(256)
engines = [NativeEngine(files, budget=BUDGETS[sys.argv[1]]) for _ in range(6)]
assert len(engines) * len(contents) > 256
def churn(engine, seed):
    for turn in range(3):
        assert read(engine, reading_all(contents, 1500, seed + turn)) == ()
threads = [
    threading.Thread(target=churn, args=(engine, seed)) for seed, engine in enumerate(engines)
]
failures = []
threading.excepthook = failures.append
for thread in threads: thread.start()
counts = [count_open()]
while any(thread.is_alive() for thread in threads):
    counts.append(count_open())
assert max(counts) <= 256 // 2, max(counts)
assert not failures, [failure.exc_value for failure in failures]
assert count_open() > 60
for engine in engines:
    engine.close()
assert count_open() == 0  # at once, while the engines still exist
print("done")
""",
        backend,
    )


@backends
@pytest.mark.parametrize("seed", first(1, range(2)))
def test_shortage_is_waited_for(backend: str, seed: int) -> None:
    """Whatever others have open, reading goes on with the files that penstock may close."""
    in_child(
        HELPERS
        + """
limit(300)
engines = [NativeEngine(files, budget=BUDGETS[sys.argv[1]]) for _ in range(3)]
others = []
for turn in range(20):
    engine = engines[random.integers(len(engines))]
    assert read(engine, reading_all(contents, 4000, turn)) == ()
    if random.random() < 0.6:  # the user opens all that is left
        with contextlib.suppress(OSError):
            while True:
                others.append(os.open("/dev/null", os.O_RDONLY))
    else:
        for fd in others[random.integers(len(others) + 1):]:
            os.close(fd)
            others.remove(fd)
print("done")
""",
        backend,
        seed,
    )


@backends
def test_no_descriptor_left(backend: str) -> None:
    """If nothing can be closed, the failure says so; afterwards the same engine reads."""
    in_child(
        HELPERS
        + """
from penstock.engine.store import build_storage_error
engine = NativeEngine(files, budget=BUDGETS[sys.argv[1]])
limit(100)
others = []
with contextlib.suppress(OSError):
    while True:
        others.append(os.open("/dev/null", os.O_RDONLY))
failures = read(engine, EngineRead(contents, [[(3, 0, 100)]], 1))
assert [failure[1:] for failure in failures] == [(errno.EMFILE, 0)], failures
error = build_storage_error(errno.EMFILE, files.path(3))
assert "100 files" in str(error) and "ulimit -n" in str(error) and error.errno == errno.EMFILE
for fd in others:
    os.close(fd)
assert read(engine, reading_all(contents)) == ()
print("done")
""",
        backend,
    )
