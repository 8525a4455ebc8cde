"""Files of examples/clusters: they meet the schemas of their tools, and what they start runs."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from prometheus_client import generate_latest, parser

import penstock
from penstock import limits
from penstock.convert import tokenize
from penstock.loader.prometheus import CounterCollector
from penstock.tasks import WorkPlan, plan_work
from tests import ROOT
from tests.checkpoint.rank_threads import Meeting
from tests.command import run
from tests.convert.tokenizers_made import draw_texts, train, write_lines
from tests.tasks.works import SBATCH, index_bytes, write_shard

FOLDER = ROOT / "examples" / "clusters"
KUBERNETES = ("1.34", "1.37")
PATIENCE_S = 120
MANIFESTS = sorted(path.name for path in FOLDER.glob("*.yaml") if "apiVersion" in path.read_text())
"""Files of Kubernetes' objects."""


def load(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def find_jobs(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The specifications of the Jobs that a Job, a JobSet or a TrainingRuntime makes, by name."""
    spec = document["spec"]
    if document["kind"] == "Job":
        return {document["metadata"]["name"]: spec}
    jobs = spec["template"]["spec"] if document["kind"] == "TrainingRuntime" else spec
    return {job["name"]: job["template"]["spec"] for job in jobs.get("replicatedJobs", ())}


def find_container(job: dict[str, Any]) -> dict[str, Any]:
    (container,) = job["template"]["spec"]["containers"]
    return container


# -- what their tools say --------------------------------------------------------------------------


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("name", MANIFESTS)
def test_kubernetes_takes_them(name: str, version: str) -> None:
    """Its own objects, and the Jobs and pods within those of others: no key that it lacks."""
    from kubernetes_validate import validate

    for document in load(name):
        if document["kind"] in ("Job", "DaemonSet"):
            validate(document, version, strict=True)
            continue
        for job, spec in find_jobs(document).items():
            whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job}}
            validate({**whole, "spec": spec}, version, strict=True)
        if document["kind"] == "TrainJob":
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "node"}}
            validate({**pod, "spec": {"containers": [find_trainer()]}}, version, strict=True)


def find_trainer() -> dict[str, Any]:
    """The container that Kubeflow Trainer makes of a TrainJob and its runtime."""
    runtime, job = load("train-trainjob.yaml")
    trainer = job["spec"]["trainer"]
    container = find_container(find_jobs(runtime)["node"])
    more = {name: trainer[name] for name in ("image", "command", "env")}
    return {**container, **more, "resources": trainer["resourcesPerNode"]}


MODELS = {
    "JobSet": "JobsetV1alpha2JobSet",
    "TrainJob": "TrainerV1alpha1TrainJob",
    "TrainingRuntime": "TrainerV1alpha1TrainingRuntime",
}


@pytest.mark.parametrize(
    "document",
    [each for name in MANIFESTS for each in load(name) if each["kind"] in MODELS],
    ids=lambda document: f"{document['kind']}-{document['metadata']['name']}",
)
def test_jobset_and_trainer_take_them(document: dict[str, Any]) -> None:
    """Their models write again all that they read: what they do not know would be left out."""
    from kubeflow_trainer_api import models

    model = getattr(models, MODELS[document["kind"]])
    assert model.from_dict(document).to_dict() == document


def find_lost(given: Any, made: Any, place: str = "") -> Iterator[str]:
    """Places of what was given and is not in what was made of it, which may have more."""
    if isinstance(given, dict) and isinstance(made, dict):
        for key, value in given.items():
            yield from find_lost(value, made.get(key, "nothing"), f"{place}/{key}")
    elif isinstance(given, list) and isinstance(made, list) and len(given) == len(made):
        for at, value in enumerate(given):
            yield from find_lost(value, made[at], f"{place}/{at}")
    elif given != made:
        yield f"{place}: {made!r}"


def test_grafana_takes_the_dashboard() -> None:
    """Its models write again all that they read, beside what they fill in."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    def find_unknown(dashboard: dict[str, Any]) -> list[str]:
        made = json.loads(json.dumps(Dashboard.from_json(dashboard), cls=JSONEncoder))
        return list(find_lost(dashboard, made))

    dashboard = read_dashboard()
    assert find_unknown(dashboard) == []
    dashboard["panels"][0]["colour"] = "unknown"
    assert find_unknown(dashboard) == ["/panels/0/colour: 'nothing'"]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.sbatch")), ids=lambda path: path.name)
def test_scripts_are_bash(path: Path) -> None:
    """ShellCheck finds nothing; directives come before the first command, where sbatch looks."""
    subprocess.run(["bash", "-n", path], check=True)
    subprocess.run(["shellcheck", path], check=True)
    lines = path.read_text().splitlines()
    commands = [at for at, line in enumerate(lines) if line and line[0] != "#"]
    assert max(at for at, line in enumerate(lines) if line.startswith("#SBATCH ")) < commands[0]


def test_each_file_says_what_was_not_run() -> None:
    """At its top, with what to change."""
    for path in FOLDER.iterdir():
        if path.suffix in (".yaml", ".sbatch"):
            comment = path.read_text().partition("\napiVersion")[0][:900]
            assert "Not run on a cluster." in comment
            assert "Change: " in comment
    assert "Grafana itself was not run" in read_dashboard()["description"]


# -- the dashboard ---------------------------------------------------------------------------------


def read_dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
    return found


def list_metrics(folder: Path) -> set[str]:
    """Names of the metrics of two running ranks, on two hosts that share a cache."""
    np.arange(64 * 512, dtype=np.uint8).tofile(folder / "records.bin")
    records = penstock.open(folder / "records.bin", record_bytes=512, index="memory")
    meeting, done = Meeting(2), threading.Barrier(2, timeout=PATIENCE_S)

    def run_rank(rank: int) -> bytes:
        cache = penstock.Cache(
            ram_bytes=1 << 20, host=f"host {rank}", listen="127.0.0.1", gather=meeting.join(rank)
        )
        with penstock.Loader(records, 4, rank=rank, world_size=2, cache=cache) as loader:
            assert len(list(loader)) == 8
            done.wait()  # who is done goes on answering the other
            return generate_latest(CounterCollector(lambda: {"0": loader.counters()}))

    with ThreadPoolExecutor(2) as threads:
        told = list(threads.map(run_rank, range(2)))
    families = parser.text_string_to_metric_families("".join(text.decode() for text in told))
    return {sample.name for family in families for sample in family.samples}


def list_selectors(tree: Any) -> Iterator[str]:
    """Names of the metrics in a parsed query."""
    if (name := getattr(tree, "name", None)) is not None:
        yield name
    for part in ("expr", "lhs", "rhs", "vector_selector", "param"):
        if (below := getattr(tree, part, None)) is not None:
            yield from list_selectors(below)
    for below in getattr(tree, "args", None) or ():
        yield from list_selectors(below)


def test_queries_are_of_what_loaders_export(tmp_path: Path) -> None:
    """Each query is PromQL, of metrics that running loaders have; each panel says what is bad."""
    import promql_parser

    metrics = list_metrics(tmp_path)
    asked = set()
    for panel in read_dashboard()["panels"]:
        assert ". Bad: " in panel["description"]
        for target in panel["targets"]:
            query = re.sub(r"\$__(rate_interval|range)", "5m", target["expr"])
            names = set(list_selectors(promql_parser.parse(query.replace("$pod", ".*"))))
            assert names
            assert names <= metrics
            assert names == set(re.findall(r"penstock_\w+", query))
            asked |= names
    assert len(asked) > 15
    (pod,) = [each for each in read_dashboard()["templating"]["list"] if each["name"] == "pod"]
    assert re.findall(r"penstock_\w+", pod["query"])[0] in metrics


def test_prometheus_looks_for_the_ports_of_the_pods() -> None:
    """What it keeps is the ports of both manifests of training, one for each rank of a pod."""
    (job,) = load("prometheus.yaml")[0]["scrape_configs"]
    (kept,) = [each["regex"] for each in job["relabel_configs"] if each.get("action") == "keep"]
    (workers,) = find_jobs(load("train-jobset.yaml")[0]).values()
    trainer = load("train-trainjob.yaml")[1]["spec"]["trainer"]
    for container, ranks in (
        (find_container(workers), 2),
        (find_trainer(), trainer["numProcPerNode"]),
    ):
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        found = [port for name, port in ports.items() if re.fullmatch(kept, name)]
        (first,) = [
            each["value"] for each in container["env"] if each["name"] == "PENSTOCK_METRICS_PORT"
        ]
        assert found == list(range(int(first), int(first) + ranks))
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[probe]["httpGet"]["port"] in ports


# -- commands --------------------------------------------------------------------------------------


def start(words: list[str], shared: Path, **environ: str) -> subprocess.Popen[str]:
    """Start a command of a container or a task, with /shared and /app where they are here."""
    for place, here in (
        ("/shared", shared),
        ("/app", FOLDER),
        ("train-workers-0-0.train", "127.0.0.1"),
    ):
        words = [word.replace(place, str(here)) for word in words]
    if words[0] in MODULES:
        words = [sys.executable, "-m", MODULES[words[0]], *words[1:]]
    started = subprocess.Popen(
        words,
        cwd=FOLDER,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    STARTED.append(started)
    return started


STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    """What a test that fails has started ends with it."""
    yield
    for process in STARTED:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    STARTED.clear()


MODULES = {"penstock": "penstock", "torchrun": "torch.distributed.run"}
"""Programs of the image, as modules of this Python."""


def start_container(
    container: dict[str, Any], shared: Path, more: Mapping[str, str], **environ: str
) -> subprocess.Popen[str]:
    """Start the command of a container as a kubelet does: its variables are those of the manifest,
    and more from the controllers; words name them as $(NAME). `environ` is other than there."""
    given = {each["name"]: each.get("value", "of a secret") for each in container.get("env", ())}
    given |= more
    words = [
        re.sub(r"\$\((\w+)\)", lambda name: given[name[1]], word) for word in container["command"]
    ]
    return start(words, shared, **{**given, **environ})


def finish(started: subprocess.Popen[str], code: int = 0) -> str:
    """What a process said, which ends with this exit code."""
    told, _ = started.communicate(timeout=PATIENCE_S)
    assert started.returncode == code, told
    return told


def list_indices(job: dict[str, Any], tasks: int) -> list[dict[str, str]]:
    """The variables of some pods of an Indexed Job: all that have tasks, and the last."""
    assert job["completionMode"] == "Indexed"
    (said,) = [each["value"] for each in find_container(job)["env"]]
    assert int(said) == job["completions"] > tasks
    return [
        {"JOB_COMPLETION_INDEX": str(index)} for index in (*range(tasks), job["completions"] - 1)
    ]


@pytest.mark.long
def test_indexed_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its indices do all tasks of a plan, and those beyond none: the index is one process's."""
    monkeypatch.setattr(limits, "task_bytes", 1)
    (job,) = find_jobs(load("index-job.yaml")[0]).values()
    for number in range(4):
        write_shard(tmp_path / "data", number)
    expected = index_bytes(tmp_path / "data")
    plan = plan_work("index", tmp_path / "data", tmp_path / "work")
    for index in list_indices(job, len(plan)):
        finish(start_container(find_container(job), tmp_path, index))
    run("commit", tmp_path / "work")
    assert (tmp_path / "data.penstock").read_bytes() == expected


@pytest.mark.long
def test_tokenizing_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Jobs of the JobSet run in the order that they name, and once more when it is restarted:
    the tokens are one process's."""
    jobs = find_jobs(load("tokenize-jobset.yaml")[0])
    after = {
        each["name"]: each.get("dependsOn", [])
        for each in load("tokenize-jobset.yaml")[0]["spec"]["replicatedJobs"]
    }
    assert after == {
        "plan": [],
        **{
            name: [{"name": before, "status": "Complete"}]
            for name, before in (("work", "plan"), ("commit", "work"))
        },
    }
    texts = draw_texts(1, 400)
    write_lines(tmp_path / "documents" / "0.jsonl", texts)
    tokenizer = train(tmp_path / "tokenizer.json", texts[:100])
    tokenize(penstock.open(tmp_path / "documents"), tmp_path / "one", tokenizer)
    for _ in range(2):
        finish(start_container(find_container(jobs["plan"]), tmp_path, {}))
        plan = WorkPlan.load(tmp_path / "work")
        for index in list_indices(jobs["work"], len(plan)):
            finish(start_container(find_container(jobs["work"]), tmp_path, index))
        finish(start_container(find_container(jobs["commit"]), tmp_path, {}))
        for ending in ("bin", "idx"):
            assert (tmp_path / f"tokens.{ending}").read_bytes() == (
                tmp_path / f"one.{ending}"
            ).read_bytes()


@pytest.mark.long
def test_broker() -> None:
    """Its probes succeed while it serves, and fail before and afterwards."""
    (daemons,) = load("broker.yaml")
    container = find_container(daemons["spec"])
    with tempfile.TemporaryDirectory(prefix="penstock") as folder:  # short, as names of sockets are

        def probe(name: str) -> int:
            words = container[name]["exec"]["command"]
            return start([word.replace("/run/penstock", folder) for word in words], Path()).wait()

        os.chmod(folder, 0o755)  # as the kubelet makes it
        assert probe("readinessProbe") == 1
        words = [word.replace("/run/penstock", folder) for word in container["command"]]
        serving = start(words, Path())
        read_until(serving, "dividing")
        assert (probe("readinessProbe"), probe("livenessProbe")) == (0, 0)
        serving.terminate()
        finish(serving)
        assert probe("livenessProbe") == 1


# -- training --------------------------------------------------------------------------------------

STEPS = 200


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A volume with tokens."""
    folder = tmp_path_factory.mktemp("shared")
    texts = draw_texts(1, 400)
    write_lines(folder / "documents.jsonl", texts)
    tokenizer = train(folder / "tokenizer.json", texts[:100])
    tokenize(penstock.open(folder / "documents.jsonl"), folder / "tokens", tokenizer)
    return folder


@pytest.fixture(scope="module")
def losses(shared: Path) -> dict[str, float]:
    """The loss at each step that is printed, of one rank that nobody stopped."""
    words = "torchrun --standalone --nproc-per-node=1 /app/train.py /shared/tokens /shared/alone"
    return read_losses(finish(start([*words.split(), f"--steps={STEPS}"], shared)))


def read_losses(told: str) -> dict[str, float]:
    return {step: float(loss) for step, loss in re.findall(r"step (\d+): loss ([\d.]+)", told)}


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """What a process says until it says this."""
    assert process.stdout is not None
    told = ""
    for line in process.stdout:
        told += line
        if text in line:
            return told
    raise AssertionError(told)


def find_port(count: int = 1) -> str:
    """The first of so many ports that were free a moment ago."""
    while True:
        with ExitStack() as stack, suppress(OSError):
            first = stack.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            for more in range(1, count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port + more))
            return str(port)


def change(container: dict[str, Any], word: str, other: str) -> None:
    """Change a word of a container's command for this host."""
    words = container["command"]
    words[words.index(word)] = other


def on_loopback() -> dict[str, str]:
    """The environment of a pod's ranks that share this host with those of other pods."""
    metrics = {"PENSTOCK_METRICS_HOST": "127.0.0.1", "PENSTOCK_METRICS_PORT": find_port(2)}
    return {"GLOO_SOCKET_IFNAME": "lo", **metrics}


@pytest.mark.long
def test_jobset_is_drained(shared: Path, losses: dict[str, float]) -> None:
    """Two nodes train, and answer their probes; SIGTERM to one ends both after the same step, and
    one node alone goes on: each loss is that of a run that nobody stopped."""
    (job,) = find_jobs(load("train-jobset.yaml")[0]).values()
    container = find_container(job)
    change(container, "--nproc-per-node=2", "--nproc-per-node=1")
    change(container, "--master-port=29500", f"--master-port={find_port()}")
    change(container, "/shared/run", "/shared/drained")
    environs = [on_loopback() for _ in range(job["completions"])]
    first, second = [
        start_container(container, shared, {"JOB_COMPLETION_INDEX": str(index)}, **environ)
        for index, environ in enumerate(environs)
    ]
    told = read_until(first, "step 10:")
    probe = container["readinessProbe"]["httpGet"]
    for environ in environs:
        url = f"http://127.0.0.1:{environ['PENSTOCK_METRICS_PORT']}{probe['path']}"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            assert b"penstock_batches_total" in answer.read()
    second.send_signal(signal.SIGTERM)
    for node in (second, first):
        told += node.communicate(timeout=PATIENCE_S)[0]
        assert node.returncode
    stopped = max(map(int, read_losses(told)))
    assert "2 ranks begin after step 0" in told
    change(container, "--nnodes=2", "--nnodes=1")
    container["command"].append(f"--steps={stopped + 20}")
    resumed = finish(
        start_container(container, shared, {"JOB_COMPLETION_INDEX": "0"}, **on_loopback())
    )
    assert f"1 ranks begin after step {stopped}\n" in resumed
    compare(losses, read_losses(told) | read_losses(resumed))


def compare(losses: dict[str, float], found: dict[str, float]) -> None:
    """Losses of a run that was stopped with those of one that was not; sums over other numbers of
    ranks differ in the last bits."""
    steps = losses.keys() & found.keys()
    assert len(steps) >= len(found) - 2 > 1  # those at which it was stopped and ended
    assert [found[step] for step in steps] == pytest.approx(
        [losses[step] for step in steps], abs=2e-3
    )


@pytest.mark.long
def test_trainjob(shared: Path, losses: dict[str, float]) -> None:
    """Its command, in pods with the variables that Kubeflow Trainer sets for torchrun."""
    trainer = load("train-trainjob.yaml")[1]["spec"]["trainer"]
    container = find_trainer()
    change(container, "/shared/run", "/shared/trainjob")
    container["command"].append("--steps=20")
    environ = {
        "PET_NNODES": str(trainer["numNodes"]),
        "PET_NPROC_PER_NODE": "1",  # in place of numProcPerNode: each takes seconds to start
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": find_port(),
    }
    pods = [
        start_container(container, shared, {**environ, "PET_NODE_RANK": str(node)}, **on_loopback())
        for node in range(trainer["numNodes"])
    ]
    told = "".join(finish(pod) for pod in pods)
    assert "2 ranks begin after step 0" in told
    assert read_losses(told) == pytest.approx(
        {step: losses[step] for step in ("10", "20")}, abs=2e-3
    )


# -- Slurm -----------------------------------------------------------------------------------------

SRUN = """#!{python}
# What srun does on one host: a process a task, which get the signals of the step. Here a bad exit
# ends the others where --kill-on-bad-exit=1 is given.
import itertools, os, signal, subprocess, sys
options = list(itertools.takewhile(lambda word: word.startswith("--"), sys.argv[1:]))
words = sys.argv[1 + len(options):]
running = {{
    subprocess.Popen(words, env={{**os.environ, "SLURM_PROCID": i, "SLURM_LOCALID": i}}).pid
    for i in map(str, range(int(os.environ["SLURM_NTASKS"])))
}}
def send(number, *_):
    for pid in running:
        os.kill(pid, number)
signal.signal(signal.SIGUSR1, send)
open(os.environ["SRUN_PID"], "w").write(str(os.getpid()))
codes = []
while running:
    pid, status = os.wait()
    running.remove(pid)
    codes.append(os.waitstatus_to_exitcode(status) % 256)
    if codes[-1] and "--kill-on-bad-exit=1" in options:
        send(signal.SIGTERM)
sys.exit(max(codes))
"""
SCONTROL = """#!/bin/sh
case $1 in
  show) echo 127.0.0.1 ;;
  requeue) echo "requeued $2" ;;
esac
"""


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """The environment of a host with stand-ins of Slurm's programs."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (
        ("sbatch", SBATCH),
        ("srun", SRUN.format(python=sys.executable)),
        ("scontrol", SCONTROL),
    ):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    path = [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
    return {"PATH": os.pathsep.join(path), "SRUN_PID": str(tmp_path / "pid")}


@pytest.mark.long
def test_array(tmp_path: Path, slurm: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements of the array do their shares: the index is one process's."""
    monkeypatch.setattr(limits, "task_bytes", 1)
    for number in range(5):
        write_shard(tmp_path / "data", number)
    expected = index_bytes(tmp_path / "data")
    plan = plan_work("index", tmp_path / "data", tmp_path / "work")
    script = str(FOLDER / "index.sbatch")
    finish(start(["sbatch", "--array=0-2%2", script, str(tmp_path / "work")], tmp_path, **slurm))
    assert plan.list_missing() == []
    log = (tmp_path / "programs" / "sbatch.log").read_text()
    assert [int(share) for share in re.findall(r"SLURM_ARRAY_TASK_ID: (\d) of 5", log)] == [2, 2, 1]
    run("commit", tmp_path / "work")
    assert (tmp_path / "data.penstock").read_bytes() == expected


def find_job() -> int:
    """The number of a job whose port was free a moment ago."""
    for job in range(os.getpid() % 10_000, 20_000):
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("127.0.0.1", 20_000 + job))
            return job
    raise AssertionError("no port is free")


@pytest.mark.long
def test_training_job(shared: Path, losses: dict[str, float], slurm: dict[str, str]) -> None:
    """USR1, two minutes before its limit of time, has it save and puts it into the queue again,
    where it goes on: each loss is that of a run that nobody stopped."""
    job = find_job()
    environ = {"SLURM_JOB_ID": str(job), "SLURM_JOB_NODELIST": "node-[1-2]"}
    environ |= {"SLURM_NTASKS": "2", "GLOO_SOCKET_IFNAME": "lo", **on_loopback(), **slurm}
    words = ["bash", str(FOLDER / "train.sbatch"), "/shared/tokens", "/shared/slurm"]
    started = start(words, shared, **environ)
    told = read_until(started, "step 10:")
    os.kill(int(Path(slurm["SRUN_PID"]).read_text()), signal.SIGUSR1)
    told += finish(started, 75)
    assert told.endswith(f"requeued {job}\n")
    stopped = max(map(int, read_losses(told)))
    resumed = finish(start([*words, f"--steps={stopped + 20}"], shared, **environ))
    assert f"2 ranks begin after step {stopped}\n" in resumed
    compare(losses, read_losses(told) | read_losses(resumed))
