"""Films encoded anew, with keyframes at another distance: each file whole or not at all, resumable.

    decode and encode into a file beside it -> decode both, compare number and times of frames,
        measure their difference -> sync -> rename -> note it in the manifest

The codec stays, at a constant quality; sound is copied as it is. All frames that players show keep
their times, and no others are stored. The encoders are those that PyAV brings, not an `ffmpeg` of
the system, whose encoders may be any.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import zip_longest
from threading import get_native_id
from typing import Any, NamedTuple

import numpy as np

from .. import limits
from ..arguments import check_function, check_path, check_whole
from ..budget import Budget
from ..dataset.dataset import Dataset
from ..dataset.dataset import open as open_dataset
from ..engine.atomic_file import storage_errors, sync_folder
from ..engine.open import is_url
from ..errors import FormatError, UsageError, missing_library
from ..index.clips import ClipCut, Clips
from ..loader.loader import Loader
from .conversion import check_outside
from .manifest import ConversionManifest, Progress, describe_source, lock_folder, mismatch_error

_ENCODERS: dict[str, tuple[str, int, dict[str, str]]] = {
    "h264": ("libx264", 18, {"sc_threshold": "0"}),
    "hevc": ("libx265", 20, {"x265-params": "scenecut=0:open-gop=0:log-level=none"}),
    "av1": ("libsvtav1", 24, {"preset": "8"}),
    "vp9": ("libvpx-vp9", 24, {"b": "0"}),
}
"""FFmpeg's encoder of each codec, its quality (crf), and its options."""
_MEASURED_S = 2.0


class Reencoded(NamedTuple):
    """Result of a conversion of films.

    written:  films of this run.
    psnr:     of the film that differs most, over all its frames, in dB.
    before, after:  random clips of 16 frames that are decoded a second here, and bytes of each.
    """

    path: str
    films: int
    written: int
    codecs: tuple[str, ...]
    psnr: float
    bytes_before: int
    bytes: int
    before: tuple[float, float]
    after: tuple[float, float]


def convert_films(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    keyframes: int,
    *,
    quality: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Reencoded:
    """Write the films of a file or a folder with a keyframe every `keyframes` frames, or resume.

    quality:   the encoder's crf; None: 18 for H.264, 20 for HEVC, 24 for AV1 and VP9.
    force:     start over if the destination holds another conversion.
    progress:  called with the films that are done, and all.

    UsageError if the arguments are impossible; FormatError for a film that cannot be decoded;
    StorageError if writing fails, or a film is not read back as it was read.
    """
    path, target = check_path("source", source), check_path("destination", destination)
    check_whole("keyframes", keyframes, 1, limits.film_frames_max)
    check_function("progress", progress, "a function of numbers of films")
    if quality is not None:
        check_whole("quality", quality, 0, 63)
    if is_url(path) or is_url(target):
        raise UsageError(f"{path if is_url(path) else target} is a URL: copy films to a folder")
    films = _open_films(path, {"frames": 1})
    files = films.index.files
    base = path if os.path.isdir(path) else os.path.dirname(path)
    check_outside(films, target)
    codec = films.index.fields[0].codec
    assert codec is not None
    codecs = sorted({name for name, *_ in codec.options["configs"]})
    if missing := [name for name in codecs if name not in _ENCODERS]:
        what = f"{path} has films of {missing[0]}, and {', '.join(_ENCODERS)} are encoded here"
        raise UsageError(f"{what}: convert them by ffmpeg")
    if any(turns for *_, turns in codec.options["configs"]):
        raise UsageError(f"{path} has films that are shown turned: turn them by ffmpeg before")
    options = {"to": "films", "keyframes": keyframes, "quality": quality}
    wanted = ConversionManifest(describe_source(films), options)
    with lock_folder(target):
        present = wanted.find_present(target, force)
        done = wanted if present is None or force else present
        done.save(target)
        start = len(done.shards)
        for number in range(start, len(files)):
            if progress is not None:
                progress(number, len(files))
            name = os.path.relpath(files.path(number), base)
            written = os.path.join(target, name)
            psnr = _write_film(films, number, written, keyframes, quality)
            entry = {"name": name, "end": number + 1, "psnr": psnr}
            done.shards.append(entry | {"bytes": os.path.getsize(written)})
            done.complete = number + 1 == len(files)
            done.save(target)
    qualities = {name: _ENCODERS[name][1] if quality is None else quality for name in codecs}
    return Reencoded(
        target,
        len(files),
        len(files) - start,
        tuple(f"{name} (crf {crf})" for name, crf in qualities.items()),
        min(float(one["psnr"]) for one in done.shards),
        int(files.size.sum()),
        sum(one["bytes"] for one in done.shards),
        _measure_clips(path),
        _measure_clips(target),
    )


def _open_films(path: str, clips: dict[str, Any]) -> Dataset:
    """Open clips, scaled if films have several sizes."""
    try:
        return open_dataset(path, index="memory", clips=clips)
    except UsageError as error:
        if "size=" not in str(error):
            raise
        return open_dataset(path, index="memory", clips=clips | {"size": (256, 256)})


def _find_times(films: Dataset, number: int) -> Any:
    """Find when the frames of a film are shown, in seconds."""
    layout = films.index.layouts[0]
    assert isinstance(layout, Clips)
    assert isinstance(layout.cut, ClipCut)
    low, end = layout.cut.times.films[number : number + 2].tolist()
    return layout.cut.times.find_seconds(np.arange(low, end))


def _measure_clips(path: str) -> tuple[float, float]:
    """Measure random clips of 16 frames, nothing kept: those a second, and bytes of each."""
    clips = _open_films(path, {"frames": 16, "short": "pad"})
    decoded, began = 0, time.perf_counter()
    with Loader(clips, 8, seed=0, budget=Budget(decoded_bytes=0), rank=0, world_size=1) as loader:
        for batch in loader:
            decoded += len(batch.ids)
            if time.perf_counter() - began > _MEASURED_S:
                break
        return decoded / (time.perf_counter() - began), clips.index.mean_bytes


def _write_film(
    films: Dataset, number: int, target: str, keyframes: int, quality: int | None
) -> float:
    """Write one film, verified; return its PSNR."""
    source, folder = films.index.files.path(number), os.path.dirname(target)
    part = os.path.join(folder, ".part-" + os.path.basename(target))
    with storage_errors(target):
        os.makedirs(folder, exist_ok=True)
    try:
        import av
    except ImportError:
        raise missing_library("av", "clips", "encoding films") from None
    times = _find_times(films, number)
    try:
        with storage_errors(target):
            _encode_film(source, part, keyframes, quality)
            psnr = _compare_films(source, part, times)
            with open(part, "rb") as written:
                os.fsync(written.fileno())
            os.replace(part, target)
    except av.FFmpegError as error:
        what = f"{source} cannot be encoded: FFmpeg says {error}"
        raise FormatError(f"{what}: leave it out") from None
    finally:
        if os.path.lexists(part):
            os.unlink(part)
    sync_folder(folder)
    return psnr


def _encode_film(source: str, target: str, keyframes: int, quality: int | None) -> None:
    import av

    os.environ.setdefault("SVT_LOG", "1")  # errors alone
    kind = "mov" if source.lower().endswith(".mov") else "mp4"
    film: Any = av.open(source)
    out: Any = av.open(target, "w", format=kind, options={"movflags": "faststart"})
    with film, out:
        old = film.streams.video[0]
        codec = {"libdav1d": "av1", "libvpx-vp9": "vp9"}.get(name := old.codec_context.name, name)
        encoder, crf, more = _ENCODERS[codec]
        options = {"g": str(keyframes), "crf": str(crf if quality is None else quality), **more}
        if encoder != "libsvtav1":
            options["keyint_min"] = str(keyframes)
        new: Any = out.add_stream(encoder, rate=old.average_rate, options=options)
        context, was = new.codec_context, old.codec_context
        new.width, new.height, new.pix_fmt = was.width, was.height, was.pix_fmt
        context.time_base = old.time_base
        for name in ("color_range", "colorspace", "color_trc", "color_primaries"):
            setattr(context, name, getattr(was, name))
        sounds = {one.index: out.add_stream_from_template(one) for one in film.streams.audio}
        with keep_policy():
            out.start_encoding()
        for packet in film.demux(old, *film.streams.audio):
            if packet.stream.index in sounds:
                if packet.dts is not None:
                    packet.stream = sounds[packet.stream.index]
                    out.mux(packet)
                continue
            for frame in packet.decode():
                frame.pict_type = 0  # the encoder chooses
                out.mux(new.encode(frame))
        out.mux(new.encode(None))


@contextmanager
def keep_policy() -> Iterator[None]:
    """Give the caller's scheduling policy to threads that are new, and to the caller again. If root
    opens SVT-AV1, it makes them real-time ones, which stay before all else on the machine."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    others = {*os.listdir("/proc/self/task")} - {str(get_native_id())}
    try:
        yield
    finally:
        for thread in {*os.listdir("/proc/self/task")} - others:
            with suppress(ProcessLookupError):
                os.sched_setscheduler(int(thread), policy, parameters)


def _compare_films(source: str, target: str, times: Any) -> float:
    """Decode both films, compare them, and return the PSNR; StorageError if others are there."""
    found = _find_times(_open_films(target, {"frames": 1}), 0)
    if len(found) != len(times):
        raise mismatch_error(target, f"it has {len(found):,} of {len(times):,} frames")
    if (away := np.abs(found - found[0] - times + times[0])).max() > 1e-4:
        at = int(away.argmax())
        raise mismatch_error(target, f"frame {at:,} is shown {away[at]:.6f} s from its time")
    squares = count = 0.0
    for was, now in zip_longest(_read_frames(source), _read_frames(target)):
        if was is None or now is None:
            raise mismatch_error(target, "it decodes to another number of frames")
        difference = was.astype(np.int16) - now
        squares += float(np.square(difference, dtype=np.int32).sum(dtype=np.float64))
        count += difference.size
    return math.inf if not squares else 10 * math.log10(255**2 * count / squares)


def _read_frames(path: str) -> Iterator[Any]:
    import av

    with av.open(path) as film:
        for frame in film.decode(video=0):
            yield frame.to_ndarray(format="rgb24")
