"""The search: how pages rank, by which words they are found besides their own, and a trial of it.

The trial asks the script of the site itself, in a browser, so that readers get the same.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from docsite import SITE

BOOSTS = {
    "": 2.0,
    "start/": 6.0,
    "how/": 4.0,
    "tutorials/": 3.0,
    "tutorial.md": 3.0,
    "install.md": 3.0,
    "simulator": 0.4,
    "bench": 0.4,
    "balance": 1.0,
    "performance": 0.1,
    "reliability": 0.1,
    "fuzzing.md": 0.02,
    "bench/dlio-defects.md": 0.02,
    "decisions/": 0.02,
    "internals/": 0.02,
    "reference/": 0.5,
    "reference/python/": 0.2,
    "reference/python/penstock._core.md": 0.01,
    "reference/python/penstock_bench._replay.md": 0.01,
    "reference/python/penstock_sim._kernels.md": 0.01,
    "reference/messages/": 0.02,
}
"""Weights of pages by how their names begin; the longest beginning counts."""

LEFT_OUT = ("internals/changelog.md", "internals/changes/")
"""Pages that the search does not know: they name everything and explain nothing."""

WORDS = {
    "balance/batch-tokens.md": "bucket",
    "cluster.md": "cache",
    "formats/audio.md": "sound speech audio wav flac mp3 ogg opus vorbis soundfile torchaudio",
    "formats/lerobot.md": "lerobot robots robotics episodes delta_timestamps action observation",
    "clips.md": "video mp4 mov frames pyav torchcodec decord film",
    "concepts/batches.md": "collate dict augmentation",
    "concepts/order.md": "shuffle exact blocked deterministic reproducible",
    "formats.md": "parquet arrow npy numpy hdf5 zarr lmdb tfrecord",
    "how/many-machines.md": "slurm array ray dask mpi kubernetes distributed index tokenize",
    "how/kubernetes.md": "k8s jobset kubeflow trainjob pod probe grafana prometheus manifest",
    "how/engines.md": "ray dask mpi worker died killed node cluster",
    "how/arrays-on-a-cluster.md": "lustre gpfs stripe slurm zarr s3",
    "how/from-dataloader.md": "pytorch migrate",
    "how/labels-elsewhere.md": "csv join hdf5",
    "how/migrate.md": "migration convert port",
    "how/memory.md": "ram oom",
    "how/questions.md": "faq help troubleshooting corrupt slow error",
    "how/ranks.md": "slurm srun torchrun mpi mpiexec multi-node distributed",
    "how/resume.md": "restart continue state_dict checkpoint gpus",
    "how/set-the-speed.md": "threads bandwidth",
    "how/split-for-validation.md": "test",
    "how/why-the-gpu-waits.md": "slow bottleneck profile",
    "how/array-questions.md": "xbatcher nan land mask rollout forecast larger than memory",
    "how/cost-of-clips.md": "video film keyframe gop decode slow torchcodec decord pyav benchmark",
    "how/cost-of-windows.md": "chunks decoded memory belady cache zarr hdf5 slow",
    "how/windows-of-arrays.md": "patches weather climate xarray netcdf time series",
    "images.md": "imagefolder jpeg augmentation",
    "install.md": "pip package macos windows docker",
    "objects.md": "s3 gcs azure cloud bucket credentials",
    "scale.md": "trillion samples shards ranks hosts large job limit descriptors rendezvous",
    "start/ten-minutes.md": "quickstart",
    "start/which-class.md": "num_workers",
    "tutorials/language-model.md": "llm gpt pretraining",
    "tutorials/pictures.md": "imagefolder",
    "trainers/transformers.md": "huggingface",
    "weights.md": "imbalance imbalanced oversample",
    "weights/lengths.md": "length",
}
"""Words of readers for a page that has others in its title."""

QUESTIONS = {
    "bucket by length": "balance/batch-tokens.html",
    "change batch size after restart": "how/resume.html",
    "continue from step": "how/resume.html",
    "deterministic": "concepts/order.html",
    "imbalanced classes": "weights.html",
    "is the loader or the gpu the bottleneck": "how/why-the-gpu-waits.html",
    "numpy arrays": "formats.html",
    "number of GPUs changed": "how/resume.html",
    "parquet": "formats.html",
    "quickstart": "start/ten-minutes.html",
    "shuffle exact blocked": "concepts/order.html",
    "variable length sequences padding": "concepts/batches.html",
    "which package for which format": "install.html",
    "ImageFolder": "tutorials/pictures.html",
    "S3 credentials": "objects.html",
    "s3 install credentials": "objects.html",
    "webdataset tar convert": "how/from-webdataset.html",
    "WebDataset": "how/from-webdataset.html",
    "Lightning": "trainers/lightning.html",
    "Slurm": "how/ranks.html",
    "multi node": "how/ranks.html",
    "cite": "cite.html",
    "class imbalance": "weights.html",
    "corrupt sample": "how/questions.html",
    "glossary": "glossary.html",
    "hdf5 labels csv": "how/labels-elsewhere.html",
    "how much memory": "how/memory.html",
    "LLM": "tutorials/language-model.html",
    "macOS": "install.html",
    "migrate from pytorch": "how/from-dataloader.html",
    "mix with weights": "how/mix-data-sets.html",
    "num_workers": "start/which-class.html",
    "pad lengths": "concepts/batches.html",
    "resume": "how/resume.html",
    "state dict": "how/resume.html",
    "what is in a state": "how/resume.html",
    "tokenize": "text/tokenize.html",
    "torchvision transforms": "images/torchvision.html",
    "troubleshooting": "how/questions.html",
    "validation split": "how/split-for-validation.html",
    "which loader": "start/which-class.html",
    "why is it slow": "how/why-the-gpu-waits.html",
    "zarr patches": "how/windows-of-arrays.html",
}
"""What people type, and the page that has to be among the first three answers."""

FIRST = 3


def write_head(page: str) -> str:
    """The lines at the top of a page that say how the search takes it."""
    lines = ["search:"]
    if page.startswith(LEFT_OUT):
        lines.append("  exclude: true")
    else:
        beginning = max((each for each in BOOSTS if page.startswith(each)), key=len)
        lines.append(f"  boost: {BOOSTS[beginning]}")
    if page in WORDS:
        lines.append(f"tags: [{', '.join(WORDS[page].split())}]")
    return "\n".join(lines) + "\n"


PROGRAM = """<!doctype html><script>
(async () => {
  const index = await (await fetch("/search/search_index.json")).json();
  const worker = new Worker("/WORKER"), found = [];
  const ask = (message) => new Promise((resolve) => {
    worker.onmessage = (event) => resolve(event.data);
    worker.postMessage(message);
  });
  index.options = {suggest: false};
  await ask({type: 0, data: index});
  for (const question of QUESTIONS) {
    const answer = await ask({type: 2, data: question});
    found.push(answer.data.items.map((item) => item[0].location.split("#")[0]));
  }
  await fetch("/found", {method: "POST", body: JSON.stringify(found)});
})();
</script>"""


class Answerer(SimpleHTTPRequestHandler):
    """Serves the site, the page that asks, and takes what it found."""

    program: bytes
    found: list[list[str]]
    done: threading.Event

    def do_GET(self) -> None:
        """Send the page that asks, or a file of the site."""
        if self.path != "/ask":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(self.program)

    def do_POST(self) -> None:
        """Take the answers."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()
        self.found += json.loads(body)
        self.done.set()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def find_browser() -> str | None:
    """The path of Debian's chromium."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def ask_site(browser: str, questions: list[str], site: Path = SITE) -> list[list[str]]:
    """The pages that the built site's search finds for each question, the best first."""
    (worker,) = site.glob("assets/javascripts/workers/search.*.js")
    program = PROGRAM.replace("WORKER", os.path.relpath(worker, site))
    program = program.replace("QUESTIONS", json.dumps(questions))
    found: list[list[str]] = []
    kind = type("Here", (Answerer,), {"program": program.encode(), "found": found})
    kind.done = done = threading.Event()  # type: ignore[attr-defined]
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(kind, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with TemporaryDirectory() as profile:
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu"]
        command += ["--disable-dev-shm-usage", f"--user-data-dir={profile}"]
        command += ["--remote-debugging-port=0", f"http://127.0.0.1:{server.server_port}/ask"]
        shown = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            done.wait(100)
        finally:
            shown.terminate()
            shown.wait()
            server.shutdown()
    return found


def unanswered() -> list[str] | None:
    """The questions whose page is not among the first answers; None without a browser."""
    browser = find_browser()
    if browser is None:
        return None
    found = ask_site(browser, list(QUESTIONS))
    if len(found) != len(QUESTIONS):
        return ["the browser gave no answer"]
    return [
        f"{question!r} finds {', '.join(pages[:FIRST]) or 'nothing'}, not {wanted}"
        for (question, wanted), pages in zip(QUESTIONS.items(), found, strict=True)
        if wanted not in pages[:FIRST]
    ]
