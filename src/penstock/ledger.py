"""Who holds which part of a host: the broker's policy. Pure; time is an argument.

Members are loaders; those of one job share what the job has. Each tells what it can do and what it
took, and holds a lease that ends unless it goes on telling. Shares are divided anew when jobs come
and go, are measured for the first time, or have changed for good where that pays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from . import limits
from .allocation import Allocation, Objective, Resources, Share, allocate, even_share
from .drift import Drift, worthwhile
from .errors import UsageError
from .lease import Lease, Measured, Report, Terms
from .throughput import JobProfile, Prediction, predict

Standing = Literal["measured", "unmeasured", "silent", "doubted"]
"""Of a job: its share is the best for it as measured; or an even one, because nothing is known of
it yet, none of its members report, or what they report is not so."""

_least = 0.01
"""Of its even share, what each job keeps of everything, also of what it was not seen to need: else
it could never be seen to need it."""
_standby = 0.02
"""What a silent member keeps for when it comes back, by what each of the others has."""
_silent_steps = 4
_silent_s_max = 600.0
_followed = 0.2
"""Weight of a new window in a job's efficiency."""
_stalled = 0.05
"""A model that waits for more than this part of the time waits for its loader."""
_trifle = 0.1
"""Of the even share: taking less than `excess` times this is no offence, whatever was leased."""


@dataclass(slots=True, kw_only=True)
class _Member:
    """A loader. `heard_s` is when it last joined or reported, `leased_s` when its lease began."""

    name: str
    rank: int
    pid: int
    heard_s: float
    step_s: float = 0.0
    profile: JobProfile | None = None
    measured: Measured | None = None
    silent: bool = False
    lease: Lease | None = None
    leased_s: float = -math.inf


@dataclass(slots=True)
class _Job:
    """The loaders of one job, and what is known of it.

    fresh:      members that have reported in this window; it ends when all have that are active.
    drift:      what its share was made for, and where it goes from there; None while unmeasured.
    changed_s:  when its share last changed.
    off:        windows in a row in which it was not what it says.
    """

    name: str
    owner: int
    members: dict[int, _Member] = field(default_factory=dict)
    fresh: set[int] = field(default_factory=set)
    drift: Drift | None = None
    share: Share | None = None
    prediction: Prediction | None = None
    changed_s: float = -math.inf
    efficiency: float = 1.0
    off: int = 0
    lies: int = 0
    doubted_until_s: float = -math.inf

    @property
    def active(self) -> list[_Member]:
        return [each for each in self.members.values() if not each.silent]

    def standing(self, now_s: float) -> Standing:
        if now_s < self.doubted_until_s:
            return "doubted"
        if not self.active:
            return "silent"
        return "unmeasured" if self.drift is None else "measured"

    def measured(self) -> Measured | None:
        """Of its active members together."""
        found = [each.measured for each in self.active if each.measured is not None]
        if not found:
            return None
        return Measured(
            samples_per_s=math.fsum(each.samples_per_s for each in found),
            cores=math.fsum(each.cores for each in found),
            bytes_per_s=math.fsum(each.bytes_per_s for each in found),
            stall=math.fsum(each.stall for each in found) / len(found),
            samples=math.fsum(each.samples for each in found),
        )

    def profile(self) -> JobProfile | None:
        """Of its active members together: as fast as all of them at the rate of the slowest, a
        sample costing what it does on average."""
        active = self.active
        known = [each for each in active if each.profile is not None]
        if not known:
            return None
        profiles = [each.profile for each in known if each.profile is not None]
        rates = [each.measured.samples_per_s if each.measured else 0.0 for each in known]
        total = math.fsum(rates)
        weights = [rate / total for rate in rates] if total else [1 / len(known)] * len(known)

        def mean(name: str) -> float:
            pairs = zip(weights, profiles, strict=True)
            return math.fsum(weight * getattr(each, name) for weight, each in pairs)

        left = [each.remaining_samples for each in profiles if each.remaining_samples is not None]
        return JobProfile(
            samples_per_s=len(active) * min(each.samples_per_s for each in profiles),
            cpu_s=mean("cpu_s"),
            storage_bytes=mean("storage_bytes"),
            stream_bytes_per_s=min(each.stream_bytes_per_s for each in profiles),
            separate=all(each.separate for each in profiles),
            checkpoint_bytes_per_s=math.fsum(each.checkpoint_bytes_per_s for each in profiles),
            remaining_samples=math.fsum(left) if len(left) == len(profiles) else None,
            efficiency=self.efficiency,
        )


class Ledger:
    """Divides a host among jobs.

    resources:  of the host, or the part of it that is shared.
    objective:  see `allocation.Objective`. With "makespan", a job that does not say how many
                samples remain counts as unmeasured.
    floors:     the part of what an even split would bring that each job keeps at least, 0.01 to 1:
                a job that is stopped altogether would never be measured again.

    Whatever members say, shares of all of them together, those at their floors included, are
    never more than there is; every one that reports has a lease; none that is measured is predicted
    to bring less than `floors` of what an even split would. A job that is silent, in doubt or
    unmeasured has an even share.
    """

    def __init__(
        self,
        resources: Resources,
        objective: Objective = "utilisation",
        floors: float = 1.0,
        terms: Terms | None = None,
    ) -> None:
        if not 0.01 <= floors <= 1:
            raise UsageError(f"floors is {floors!r}: use a part of the even split, 0.01 to 1")
        if resources.cache_bytes:
            raise UsageError("Resources.cache_bytes is not shared by a broker: leave it out")
        allocate([], resources, objective)  # checks the objective
        self.terms = Terms() if terms is None else terms
        self._resources = resources
        self._objective: Objective = objective
        self._floors = float(floors)
        self._jobs: dict[tuple[int, str], _Job] = {}
        self._owners: dict[int, _Job] = {}
        self._anew = False
        self._drifted = False
        self._divided_s = -math.inf
        self._divisions = 0
        self._allocation: Allocation | None = None

    @property
    def resources(self) -> Resources:
        return self._resources

    @resources.setter
    def resources(self, resources: Resources) -> None:
        """More or less to divide from now on."""
        self._anew = self._anew or resources != self._resources
        self._resources = resources

    @property
    def busy(self) -> bool:
        """Whether there is anybody to divide for."""
        return bool(self._jobs)

    def together(self, now_s: float) -> Report:
        """What all jobs would say as one whose samples are bytes of storage: how many they could
        take with the cores there are, and do take. No profile while one of them is unmeasured."""
        jobs = [job for job in self._jobs.values() if job.active]
        found = [job.measured() for job in jobs]
        taken = math.fsum(each.bytes_per_s for each in found if each is not None)
        profiles = [profile for profile in self._believed(jobs, now_s) if profile is not None]
        profile = None
        could = 0.0
        if jobs and len(profiles) == len(jobs):
            unlimited = replace(self._resources, bytes_per_s=math.inf)
            best = allocate(profiles, unlimited, self._objective, self._floors)
            for each, expected in zip(profiles, best.predictions, strict=True):
                assert expected is not None
                could += expected.samples_per_s * each.storage_bytes / each.efficiency
            could = max(1.0, could)
            profile = {"samples_per_s": could, "cpu_s": 0.0, "storage_bytes": 1.0}
            checkpoints = math.fsum(each.checkpoint_bytes_per_s for each in profiles)
            if checkpoints:
                profile["checkpoint_bytes_per_s"] = checkpoints
        return Report(
            profile=profile,
            measured=Measured(
                samples_per_s=taken,
                bytes_per_s=taken,
                stall=max(0.0, 1 - taken / could) if could else 0.0,
            ),
        )

    def join(
        self, member: int, now_s: float, *, job: str, rank: int, pid: int, name: str, owner: int = 0
    ) -> None:
        """A loader takes part. Jobs of the same name are one where their owner is the same.

        member:  any number that no other member has.
        """
        assert member not in self._owners, f"member {member} has joined already"
        found = self._jobs.setdefault((owner, job), _Job(job, owner))
        found.members[member] = _Member(name=name, rank=rank, pid=pid, heard_s=now_s)
        self._owners[member] = found
        self._anew = True

    def leave(self, member: int) -> None:
        """A loader is gone; what it had is there for the others."""
        job = self._owners.pop(member)
        del job.members[member]
        job.fresh.discard(member)
        if not job.members:
            del self._jobs[job.owner, job.name]
        self._anew = True

    def report(self, member: int, now_s: float, report: Report) -> None:
        """What a member says. UsageError names what is absurd about it; that is no report then."""
        profile = None if report.profile is None else profile_of(report.profile)
        job = self._owners[member]
        found = job.members[member]
        if found.silent:
            found.silent = False
            self._anew = True
        found.heard_s, found.step_s = now_s, report.measured.step_s
        if profile is None:
            return
        found.profile, found.measured = profile, report.measured
        job.fresh.add(member)
        if all(key in job.fresh for key, each in job.members.items() if not each.silent):
            job.fresh.clear()
            self._window(job, now_s)

    def tick(self, now_s: float) -> dict[int, Lease]:
        """What time brings. Returns the leases that are new or renewed, by member; to be called
        after whatever else is."""
        for job in self._jobs.values():
            for each in job.members.values():
                if not each.silent and now_s - each.heard_s > self._patience_s(each):
                    each.silent = True
                    self._anew = True
            if job.doubted_until_s <= now_s < math.inf and job.doubted_until_s > -math.inf:
                job.doubted_until_s = -math.inf
                job.drift = None  # what it reports from now on is believed
                self._anew = True
        if self._anew or (self._drifted and now_s - self._divided_s >= self.terms.hold_s):
            self._divide(now_s)
        return self._renewed(now_s)

    # -- what a window says ------------------------------------------------------------------------

    def _window(self, job: _Job, now_s: float) -> None:
        """All active members of a job have reported once more."""
        profile, measured = job.profile(), job.measured()
        if profile is None or measured is None:
            return
        if job.drift is None:
            job.drift = Drift(profile)
            self._anew = True
            return
        judged = job.share is not None and now_s - job.changed_s >= self.terms.settle_s
        if judged and job.standing(now_s) == "measured":
            self._judge(job, now_s, profile, measured)
        if job.drift.observe(profile) is not None:
            self._drifted = True

    def _judge(self, job: _Job, now_s: float, profile: JobProfile, measured: Measured) -> None:
        """Compares what a job brings and takes with what was expected of it."""
        assert job.share is not None
        share, terms = job.share, self.terms
        expected = predict(profile, share).samples_per_s
        lies = not expected / terms.lie <= measured.samples_per_s <= expected * terms.lie
        even = even_share([None] * len(self._jobs), self._resources)
        for taken, leased, least in (
            (measured.cores, share.workers, even.workers),
            (measured.bytes_per_s, share.bytes_per_s, even.bytes_per_s),
        ):
            lies = lies or taken > terms.excess * max(leased, _trifle * least)
        job.off = job.off + 1 if lies else 0
        if job.off >= terms.lies:
            job.off = 0
            job.lies += 1
            job.doubted_until_s = now_s + terms.doubt_s
            self._anew = True
        alone = predict(replace(profile, efficiency=1.0), share)
        if measured.stall > _stalled and alone.binding != "model":
            found = measured.samples_per_s / alone.samples_per_s
            job.efficiency += _followed * (min(1.0, max(0.5, found)) - job.efficiency)

    # -- dividing ----------------------------------------------------------------------------------

    def _divide(self, now_s: float) -> None:
        """Shares anew, unless only drift asks for it and it does not pay."""
        jobs = list(self._jobs.values())
        profiles = self._believed(jobs, now_s)
        proposed = allocate(profiles, self._resources, self._objective, self._floors)
        forced, self._anew, self._drifted = self._anew, False, False
        if not forced and not self._pays(jobs, profiles, proposed):
            return
        self._allocation = proposed
        self._divided_s = now_s
        self._divisions += 1
        if not jobs:
            return
        even = even_share(profiles, self._resources)
        for job, share, expected in zip(jobs, proposed.shares, proposed.predictions, strict=True):
            if job.share is None or _differs(job.share, share):
                job.changed_s, job.off = now_s, 0
            job.share, job.prediction = share, expected
            self._deal(job, even, now_s)

    def _believed(self, jobs: Sequence[_Job], now_s: float) -> list[JobProfile | None]:
        """The profiles that jobs are to have a share for; None for an even one."""
        found: list[JobProfile | None] = []
        for job in jobs:
            profile = None if job.drift is None else job.drift.profile
            unknown = self._objective == "makespan" and (
                profile is None or profile.remaining_samples is None
            )
            found.append(None if unknown or job.standing(now_s) != "measured" else profile)
        # What checkpoints write is not divided; nobody takes more than half of an even share so.
        most = self._resources.bytes_per_s / max(1, len(jobs)) / 2
        found = [
            profile
            and replace(profile, checkpoint_bytes_per_s=min(most, profile.checkpoint_bytes_per_s))
            for profile in found
        ]
        return [
            profile and _padded(profile, even_share(found, self._resources)) for profile in found
        ]

    def _pays(
        self, jobs: Sequence[_Job], profiles: Sequence[JobProfile | None], proposed: Allocation
    ) -> bool:
        known = [row for row, profile in enumerate(profiles) if profile is not None]
        shares = [share for row in known if (share := jobs[row].share) is not None]
        return worthwhile(
            [profile for profile in profiles if profile is not None],
            shares,
            replace(proposed, floors=tuple(proposed.floors[row] for row in known)),
            horizon_s=self.terms.horizon_s,
            switch_s=self.terms.switch_s,
        )

    def _deal(self, job: _Job, even: Share, now_s: float) -> None:
        """The share of a job among its members: evenly among those that are active."""
        assert job.share is not None
        active = len(job.active)
        for each in job.members.values():
            part = 1 / len(job.members)
            if active:
                silent = len(job.members) - active
                part = (_standby if each.silent else 1.0) / (active + _standby * silent)
            each.lease = Lease(
                cores=part * job.share.workers,
                bytes_per_s=_limited(part * job.share.bytes_per_s),
                floor_cores=part * even.workers,
                floor_bytes_per_s=_limited(part * even.bytes_per_s),
                lasts_s=self._patience_s(each),
            )
            each.leased_s = -math.inf

    def _renewed(self, now_s: float) -> dict[int, Lease]:
        """Leases that members are to be sent."""
        found = {}
        for job in self._jobs.values():
            for key, each in job.members.items():
                assert each.lease is not None
                new = each.leased_s == -math.inf
                due = now_s - each.leased_s >= each.lease.lasts_s / 2
                if new or (due and not each.silent):
                    each.leased_s = now_s
                    found[key] = each.lease
        return found

    def _patience_s(self, member: _Member) -> float:
        """How long a member may be silent: some of its steps, as it is called once in each."""
        return min(max(self.terms.lease_s, _silent_steps * member.step_s), _silent_s_max)

    # -- what is shown -----------------------------------------------------------------------------

    def state(self, now_s: float) -> dict[str, Any]:
        """All of it, as JSON has it: rates by second, times in seconds from now."""
        worth = None if self._allocation is None else self._allocation.worth
        return {
            "cores": self._resources.cores,
            "bytes_per_s": _limited(self._resources.bytes_per_s),
            "objective": self._objective,
            "floors": self._floors,
            "divisions": self._divisions,
            "value": None if self._allocation is None else self._allocation.value,
            "worth": worth and {"core": worth.core, "byte_per_s": worth.byte_per_s},
            "jobs": [self._state_of(job, now_s) for job in self._jobs.values()],
        }

    def _state_of(self, job: _Job, now_s: float) -> dict[str, Any]:
        measured, share, expected = job.measured(), job.share, job.prediction
        return {
            "job": job.name,
            "owner": job.owner,
            "standing": job.standing(now_s),
            "lies": job.lies,
            "efficiency": job.efficiency,
            "cores": share and share.workers,
            "bytes_per_s": share and _limited(share.bytes_per_s),
            "predicted": expected and expected.samples_per_s,
            "idle": expected and expected.idle,
            "binding": expected and expected.binding,
            "measured": measured and measured.samples_per_s,
            "stall": measured and measured.stall,
            "members": [_state_of(each, now_s) for each in job.members.values()],
        }


def _state_of(member: _Member, now_s: float) -> dict[str, Any]:
    lease, measured = member.lease, member.measured
    return {
        "name": member.name,
        "rank": member.rank,
        "pid": member.pid,
        "silent": member.silent,
        "heard_s": now_s - member.heard_s,
        "cores": lease and lease.cores,
        "bytes_per_s": lease and lease.bytes_per_s,
        "measured": measured and measured.samples_per_s,
        "stall": measured and measured.stall,
    }


def profile_of(said: Mapping[str, Any]) -> JobProfile:
    """A profile as a member reports it. UsageError names what is absurd, missing or unknown."""
    known = {each.name: each for each in fields(JobProfile)}
    unknown = sorted(said.keys() - known.keys())
    if unknown:
        raise UsageError(f"JobProfile.{unknown[0]} is not known: use {', '.join(known)}")
    for name in ("samples_per_s", "cpu_s", "storage_bytes"):
        if said.get(name) is None:
            raise UsageError(f"JobProfile.{name} is missing: give a number")
    given = {name: value for name, value in said.items() if value is not None}
    if type(given.get("separate", False)) is not bool:
        raise UsageError(f"JobProfile.separate is {given['separate']!r:.100}: use true or false")
    return JobProfile(**given)


def _padded(profile: JobProfile, even: Share) -> JobProfile:
    """The profile as if a sample needed a little of everything: `_least` of the even share at what
    that brings. It binds nowhere, and leaves no job without."""
    rate = predict(profile, even).samples_per_s
    most = limits.allocation_number_max
    rate_bytes = even.bytes_per_s if even.bytes_per_s < math.inf else 0.0
    return replace(
        profile,
        cpu_s=min(most, max(profile.cpu_s, _least * even.workers / rate)),
        storage_bytes=min(most, max(profile.storage_bytes, _least * rate_bytes / rate)),
    )


def _differs(one: Share, other: Share) -> bool:
    """Whether what a job takes may change."""
    pairs = (one.workers, other.workers), (one.bytes_per_s, other.bytes_per_s)
    return any(now != then and abs(now - then) > 0.01 * then for then, now in pairs)


def _limited(rate: float) -> float | None:
    return rate if rate < math.inf else None
