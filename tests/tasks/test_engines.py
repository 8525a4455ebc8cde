"""Shared work on real engines, whose processes are killed at random points: the bytes of one."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from benchmarks.mpi import launch

import penstock
from penstock import limits
from penstock.convert import tokenize
from penstock.errors import UsageError, WorkerError
from penstock.tasks import WorkPlan, distribute, make_engine, plan_work
from tests import ROOT
from tests.command import run
from tests.convert.tokenizers_made import draw_texts, train, write_lines
from tests.tasks.works import LONG_AGO_NS, SBATCH, index_bytes, write_shard

pytestmark = pytest.mark.engines
psutil = pytest.importorskip("psutil", reason="no psutil: make test-engines installs it")

PATIENCE_S = 120
KILLS = int(os.environ.get("PENSTOCK_KILLS", "3"))
"""Processes killed, of each work on each engine."""
PYTHON = [sys.executable, "-m"]
Processes = list[Any]  # of psutil


def select(processes: Processes, word: str) -> Processes:
    """Processes that have a word in their command."""
    found = []
    for process in processes:
        with suppress(psutil.Error):
            if any(word in argument for argument in process.cmdline()):
                found.append(process)
    return found


def list_below(pid: int) -> Processes:
    """The processes that a process started, and those started."""
    with suppress(psutil.Error):
        return list(psutil.Process(pid).children(recursive=True))
    return []


def list_tree(pid: int) -> Processes:
    """A process that is there, and those below."""
    with suppress(psutil.Error):
        return [psutil.Process(pid), *list_below(pid)]
    return []


def end(processes: Processes) -> None:
    """Kill processes, and wait until they are gone."""
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE_S)
    assert not alive


@dataclass
class Engine:
    """An engine under test.

    command:       how `penstock` starts on it, and `environ` what it is told.
    name:          what --on says.
    find_workers:  the processes that do tasks, given the driver's id.
    lose_node:     loses a node and starts another one.
    leaves:        whether a killed driver leaves processes that a cluster would end.
    deadly:        whose death ends the driver.
    """

    name: str
    find_workers: Callable[[int], Processes]
    command: list[str] = field(default_factory=lambda: [*PYTHON, "penstock"])
    environ: dict[str, str] = field(default_factory=dict)
    lose_node: Callable[[random.Random], None] | None = None
    leaves: bool = False
    deadly: tuple[str, ...] = ("driver",)

    @contextmanager
    def drive(self, work: Path, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
        """A process that does what is missing; nothing of it stays. Its stderr is a file, which
        processes that outlive it do not keep open."""
        with open(f"{work}.stderr", "wb") as told:
            driver = subprocess.Popen(
                [*self.command, "work", str(work), "--on", self.name],
                cwd=ROOT,
                env={**os.environ, "COLUMNS": "200", **self.environ},
                stdout=subprocess.DEVNULL,
                stderr=told,
                start_new_session=True,
                **more,
            )
        try:
            yield driver
        finally:
            below = list_below(driver.pid)
            driver.kill()
            driver.wait()
            if self.leaves:
                end(below)
            _, alive = psutil.wait_procs(below, timeout=PATIENCE_S)
            names = [process.cmdline() for process in alive]
            end(alive)
            assert not names


def read_stderr(work: Path) -> str:
    """Messages of the last driver of some work."""
    return Path(f"{work}.stderr").read_text()


# -- engines ---------------------------------------------------------------------------------------


@contextmanager
def local(folder: Path) -> Iterator[Engine]:
    yield Engine("local", lambda driver: select(list_below(driver), "spawn_main"))


@contextmanager
def slurm(folder: Path) -> Iterator[Engine]:
    """A stand-in of sbatch, which does the array at once."""
    for name, text in (("sbatch", SBATCH), ("scontrol", "#!/bin/sh\necho 'MaxArraySize = 6'\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    command = [str(Path(sys.executable).parent / "penstock")]
    yield Engine(
        "slurm",
        lambda driver: select(list_below(driver), "--tasks"),
        command,
        {"PATH": path},
        leaves=True,
    )


@contextmanager
def mpi(folder: Path) -> Iterator[Engine]:
    if not launch():
        pytest.skip("no mpi4py")
    command = [*launch(), "-n", "3", *PYTHON, "mpi4py.futures", "-m", "penstock"]

    def find_workers(driver: int) -> Processes:
        ranks = select(list_below(driver), "mpi4py.futures")
        with suppress(psutil.Error):
            return [rank for rank in ranks if rank.environ().get("PMI_RANK", "0") != "0"]
        return []

    yield Engine("mpi", find_workers, command, deadly=("driver", "worker"))


@contextmanager
def dask(folder: Path, *words: str) -> Iterator[Engine]:
    """A scheduler, and nannies with a worker each, which are told these words."""
    pytest.importorskip("distributed", reason="no distributed: make test-engines installs it")
    found = folder / "scheduler.json"

    def start(*words: str) -> subprocess.Popen[bytes]:
        command = [*PYTHON, "distributed.cli.dask_" + words[0], *words[1:]]
        return subprocess.Popen(
            [*command, "--scheduler-file", str(found), "--no-dashboard"],
            cwd=ROOT,
            stderr=(folder / "log").open("ab"),
            stdout=subprocess.DEVNULL,
        )

    def start_worker() -> subprocess.Popen[bytes]:
        return start("worker", "--nthreads", "1", "--local-directory", str(folder), *words)

    scheduler = start("scheduler", "--host", "127.0.0.1", "--port", "0")
    nodes = [start_worker() for _ in range(2)]

    def lose(draw: random.Random) -> None:
        lost = nodes.pop(draw.randrange(len(nodes)))
        end(list_tree(lost.pid))
        lost.wait()
        nodes.append(start_worker())

    def find_workers(driver: int) -> Processes:
        return [worker for node in nodes for worker in select(list_below(node.pid), "spawn_main")]

    try:
        while not (found.exists() and (text := found.read_text()).endswith("}")):
            assert scheduler.poll() is None
            time.sleep(0.01)
        address = {"DASK_SCHEDULER_ADDRESS": str(json.loads(text)["address"])}
        yield Engine("dask", find_workers, environ=address, lose_node=lose)
    finally:
        for started in (*nodes, scheduler):
            end(list_tree(started.pid))
            started.wait()


@contextmanager
def dask_here(folder: Path) -> Iterator[Engine]:
    """Workers that the driver starts, and that end with it."""
    pytest.importorskip("distributed", reason="no distributed: make test-engines installs it")
    yield Engine("dask", lambda driver: select(list_below(driver), "spawn_main"))


@contextmanager
def ray_of(raylets: int, cores: int = 1) -> Iterator[Engine]:
    """So many raylets of one core each; the first is the driver's and stays."""
    pytest.importorskip("ray", reason="no ray: make test-engines installs it")
    from ray.cluster_utils import Cluster

    # Ray's sockets have paths of at most 107 bytes; its log monitor may still write when it ends.
    with (
        tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as home,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name in ("HOME", "RAY_TMPDIR"):
            patch.setenv(name, home)
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        (Path(home) / "ray").mkdir()
        node = {"num_cpus": cores, "object_store_memory": 80 << 20}
        cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        for _ in range(raylets - 1):
            cluster.add_node(**node)

        def find_workers(driver: int) -> Processes:
            raylets = [each.all_processes["raylet"][0].process for each in cluster.list_all_nodes()]
            return [
                worker for raylet in raylets for worker in select(list_below(raylet.pid), "attempt")
            ]

        def lose(draw: random.Random) -> None:
            lost = draw.choice(sorted(cluster.worker_nodes, key=lambda each: each.unique_id))
            cluster.remove_node(lost, allow_graceful=False)
            cluster.add_node(**node)

        try:
            environ = {"RAY_ADDRESS": cluster.address}
            yield Engine("ray", find_workers, environ=environ, lose_node=lose)
        finally:
            cluster.shutdown()


ENGINES: dict[str, Callable[[Path], AbstractContextManager[Engine]]] = {
    "local": local,
    "slurm": slurm,
    "mpi": mpi,
    "dask": dask,
    "dask-here": dask_here,
    "ray-2": lambda _: ray_of(2),
    "ray-3": lambda _: ray_of(3),
}


# -- killed ----------------------------------------------------------------------------------------


def count_parts(work: Path) -> int:
    return sum(name[0] != "." for name in os.listdir(work / "parts"))


def work_killed(engine: Engine, work: Path, draw: random.Random, kills: int) -> dict[str, int]:
    """Do the tasks, while so many processes are killed, each after some more parts are done: who
    died. Work that ends before its kills begins again, without parts."""
    victims = ["worker", "driver", *(["node"] if engine.lose_node else [])]
    plan = [(victims[kill % len(victims)], draw.randint(1, 4)) for kill in range(kills)]
    draw.shuffle(plan)
    died = dict.fromkeys(victims, 0)
    deadline = time.monotonic() + PATIENCE_S * kills
    while plan or WorkPlan.load(work).list_missing():
        if not WorkPlan.load(work).list_missing():
            for part in (work / "parts").iterdir():
                part.unlink(missing_ok=True)  # a task that outlives its driver renames its file
        with engine.drive(work) as driver:
            was = dict(died)
            seen = count_parts(work)
            while driver.poll() is None:
                assert time.monotonic() < deadline, f"{died}, {plan}, {count_parts(work)} parts"
                if not plan or count_parts(work) < seen + plan[-1][1]:
                    time.sleep(0.001)
                    continue
                victim = plan[-1][0]
                if victim == "driver":
                    os.kill(driver.pid, signal.SIGKILL)
                    driver.wait()
                elif victim == "node":
                    assert engine.lose_node is not None
                    engine.lose_node(draw)
                elif workers := engine.find_workers(driver.pid):
                    with suppress(psutil.Error):
                        draw.choice(workers).kill()
                else:
                    continue
                died[plan.pop()[0]] += 1
                seen = count_parts(work)
        told = read_stderr(work)
        if all(died[name] == was[name] for name in engine.deadly):
            assert driver.returncode == 0, told
    return died


def plan_index(data: Path) -> tuple[Path, Path, bytes]:
    """Plan the index: the folder of the plan, what will be made, and the bytes wanted."""
    os.utime(data, ns=(LONG_AGO_NS, LONG_AGO_NS))
    expected = index_bytes(data)
    work = plan_work("index", data, f"{data}-work").folder
    return Path(work), Path(f"{data}.penstock"), expected


def plan_lines(folder: Path) -> tuple[Path, Path, bytes]:
    """Plan the index of 30 files of JSON lines."""
    (folder / "lines").mkdir()
    for number in range(30):
        path = folder / "lines" / f"{number}.jsonl"
        path.write_text("".join(f'{{"id": {number}{i}}}\n' for i in range(10_000)))
        os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    return plan_index(folder / "lines")


@pytest.fixture
def works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Path, Path, bytes]]:
    """What there is to do: the folder of the plan, what it makes, and the bytes wanted."""
    monkeypatch.setattr(limits, "task_bytes", 1)
    monkeypatch.setattr(limits, "task_text_bytes", 50_000)
    for number in range(30):
        write_shard(tmp_path / "tars", number, samples=300)
    found = {"tars": plan_index(tmp_path / "tars"), "lines": plan_lines(tmp_path)}
    texts = draw_texts(1, 10_000)
    tokenizer = train(tmp_path / "tokenizer.json", texts[:100])
    documents = write_lines(tmp_path / "documents.jsonl", texts)
    os.utime(documents, ns=(LONG_AGO_NS, LONG_AGO_NS))
    tokenize(penstock.open(documents), tmp_path / "one", tokenizer)
    work = tmp_path / "tokens-work"
    plan_work("tokenize", documents, work, tokenizer=str(tokenizer))
    found["tokens"] = (work, work / "tokens.bin", (tmp_path / "one.bin").read_bytes())
    return found


@pytest.mark.timeout(400 * KILLS)
@pytest.mark.parametrize("name", ENGINES)
def test_killed_at_random(name: str, works: Any, tmp_path: Path) -> None:
    """Workers, drivers and whole nodes die, the command is run again: the bytes are the same."""
    draw = random.Random(name)
    (tmp_path / "engine").mkdir()
    with ENGINES[name](tmp_path / "engine") as engine:
        for work, made, expected in works.values():
            assert len(WorkPlan.load(work)) > 20
            died = work_killed(engine, work, draw, KILLS)
            print(name, work.name, died)
            run("commit", work)
            assert made.read_bytes() == expected


# -- what goes wrong -------------------------------------------------------------------------------


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, bytes]:
    """A plan of an index of JSON lines, as in `works`."""
    monkeypatch.setattr(limits, "task_bytes", 1)
    return plan_lines(tmp_path)


def tell(engine: Engine, work: Path, code: int, **more: Any) -> str:
    """What a driver says that ends by itself with this exit code."""
    with engine.drive(work, **more) as driver:
        driver.wait(PATIENCE_S)
        told = read_stderr(work)
        assert driver.returncode == code, told
    return told


def test_two_drivers_at_once(lines: Any, tmp_path: Path) -> None:
    """They do no harm to each other, and neither do two commits."""
    work, made, expected = lines
    with dask(tmp_path) as engine, local(tmp_path) as other:
        with engine.drive(work) as first, other.drive(work) as second:
            assert (first.wait(), second.wait()) == (0, 0)
        commits = [subprocess.Popen([*PYTHON, "penstock", "commit", str(work)]) for _ in range(2)]
        assert [commit.wait() for commit in commits] == [0, 0]
    assert made.read_bytes() == expected


def test_full_disk(lines: Any, tmp_path: Path) -> None:
    """The error names the path; what was there stays, and the next run goes on."""
    work, made, expected = lines
    WorkPlan.load(work).do(3)

    def shrink() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))

    with local(tmp_path) as engine:
        told = tell(engine, work, 1, preexec_fn=shrink)
        assert f"task 0 (0.jsonl): {WorkPlan.load(work).find_part(0)} cannot be written: " in told
        assert "29 of 29 tasks failed: the same command does only those" in told
        assert count_parts(work) == 1 == len(os.listdir(work / "parts"))
        tell(engine, work, 0)
    commit = [*PYTHON, "penstock", "commit", str(work)]
    done = subprocess.run(commit, preexec_fn=shrink, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "lines: the index could not be saved ([Errno 27] File too large" in done.stderr
    assert "lines: the index has no place: commit it again" in done.stderr
    run("commit", work)
    assert made.read_bytes() == expected


NO_PENSTOCK = ("--preload", "import sys; sys.modules['penstock'] = None")


@pytest.mark.parametrize(
    ("name", "words"), [("dask", ["--nworkers", "0"]), ("dask", NO_PENSTOCK), ("ray", [])]
)
def test_cluster_without_workers(
    name: str, words: list[str], lines: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in bounded time; Dask's workers without penstock end by themselves."""
    monkeypatch.setattr(limits, "engine_start_s", 2)
    with dask(tmp_path, *words) if name == "dask" else ray_of(1, cores=0) as engine:
        for variable, address in engine.environ.items():
            monkeypatch.setenv(variable, address)
        with pytest.raises(WorkerError, match="no worker of the engine answered within 2 s: start"):
            distribute(WorkPlan.load(lines[0]), make_engine(name))
        with pytest.raises(UsageError, match="--workers is 3, and .*_ADDRESS says which there are"):
            distribute(WorkPlan.load(lines[0]), make_engine(name, 3))


def test_cluster_that_is_not_there(lines: Any) -> None:
    environ = {
        "DASK_SCHEDULER_ADDRESS": "tcp://127.0.0.1:1",
        "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "1s",
        "RAY_ADDRESS": "127.0.0.1:1",
    }
    for name in ("dask", "ray"):
        told = tell(Engine(name, list_below, environ=environ), lines[0], 1).splitlines()[-1]
        assert told.startswith(f"penstock: --on {name} does not start: "), told


def test_mpi_without_its_module(lines: Any) -> None:
    """Ranks that are all drivers, and a driver without other ranks, say how to start."""
    for command in (["-n", "2", *PYTHON], ["-n", "1", *PYTHON, "mpi4py.futures", "-m"]):
        engine = Engine("mpi", list_below, [*launch(), *command, "penstock"])
        wanted = "--on mpi has no workers, the other ranks of mpi4py.futures: start `mpiexec -n 9"
        assert wanted in tell(engine, lines[0], 1)


def test_workers_of_another_version(lines: Any, tmp_path: Path) -> None:
    """The error names both versions."""
    preload = "import penstock.tasks.work_plan as plan; plan.__version__ = '9.9.9'"
    with dask(tmp_path, "--preload", preload) as engine:
        told = tell(engine, lines[0], 1)
    wanted = rf"planned by penstock {penstock.__version__} on .* and this is penstock 9\.9\.9 on"
    assert re.search(wanted, told), told
    assert not count_parts(lines[0])


def test_scheduler_that_dies(lines: Any, tmp_path: Path) -> None:
    """The driver ends by itself, and goes on with the next cluster."""
    work, made, expected = lines
    (tmp_path / "next").mkdir()
    with dask(tmp_path) as engine:
        engine.environ["DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT"] = "1s"
        with engine.drive(work) as driver:
            while count_parts(work) < 3:
                assert driver.poll() is None
                time.sleep(0.001)
            end(select(list_below(os.getpid()), "dask_scheduler"))
            assert driver.wait(PATIENCE_S) == 1
        wanted = "penstock: --on dask does not start: OSError: Timed out"
        assert wanted in read_stderr(work)
    with dask(tmp_path / "next") as engine:
        tell(engine, work, 0)
    run("commit", work)
    assert made.read_bytes() == expected


def test_worker_that_its_memory_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that needs more than workers may have is named; the others are done."""
    monkeypatch.setattr(limits, "task_bytes", 1)
    (tmp_path / "data").mkdir()
    for number in range(4):
        count = 20_000_000 if number == 2 else 10
        (tmp_path / "data" / f"{number}.jsonl").write_bytes(b"{}\n" * count)
    plan = plan_work("index", tmp_path / "data", tmp_path / "work")
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", "0")
    with dask(tmp_path, "--memory-limit", "400MB") as engine:
        told = tell(engine, tmp_path / "work", 1)
    assert re.search(r"task 2 \(2\.jsonl\): the engine failed: KilledWorker: ", told), told
    assert plan.list_missing() == [2]
