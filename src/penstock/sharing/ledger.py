"""Ledger of a host: each job's part of it. The broker's policy; pure, time is an argument.

Members are loaders; the members of one job share its part. Each reports its abilities and its use,
and holds a lease that ends unless it goes on reporting. Shares are divided again when jobs come and
go, when they are measured for the first time, and when they have changed for good and it pays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from .. import limits
from ..arguments import check_kind
from ..errors import UsageError
from .allocation import Allocation, Objective, Resources, allocate, even_share, score
from .job_state import (
    Drift,
    JobMember,
    JobProfile,
    JobState,
    Share,
    bound_number,
    encode_rate,
    predict,
    read_profile,
)
from .lease import Grant, JobMeasurement, Lease, Report, Terms
from .transfers import Key, Transfers

_least = 0.01
"""Part of an even split in each share that is dealt.

So each job has a little of everything, also of a resource that it was not seen to need: else it
could never be seen to need it.
"""
_standby = 0.02
"""Share that a silent member keeps until it comes back, over the share of each of the others."""
_roomy = 1.1
"""Bandwidth that loaders keep beside transfers, over the bandwidth that they use: spare for a
hiccup."""
_drifts = 0.12
"""Relative difference that a profile may have from the one its share was made for.

It is small because a floor is a promise.
"""


class Ledger:
    """Division of a host among jobs.

    resources:  of the host, or the part of it that is shared.
    objective:  see `allocation.Objective`. With "makespan", a job that does not say how many
                samples remain counts as unmeasured.
    floors:     part of its even-split rate that each job keeps at least, 0.01 to 1: a job that is
                stopped altogether would never be measured again.

    Whatever members report: shares of all of them together, those at their floors included, are
    never more than there is; every member that reports has a lease; no measured job is predicted to
    be slower than `floors` of its even-split rate. A job that is silent, in doubt or unmeasured has
    an even share.
    """

    def __init__(
        self,
        resources: Resources,
        objective: Objective = "utilisation",
        floors: float = 1.0,
        terms: Terms | None = None,
    ) -> None:
        check_kind("resources", resources, Resources, "penstock.sharing.Resources(cores=...)")
        if not isinstance(floors, int | float) or not 0.01 <= floors <= 1:
            raise UsageError(f"floors is {floors!r}: use a part of the even split, 0.01 to 1")
        allocate([], resources, objective)  # checks the objective
        self.terms = Terms() if terms is None else terms
        self._resources = resources
        self._objective: Objective = objective
        self._floors = float(floors)
        self._jobs: dict[tuple[int, str], JobState] = {}
        self._owners: dict[int, JobState] = {}
        self._anew = False
        self._drifted = False
        self._divided_s = self._looked_s = -math.inf
        self._even = even_share([None], resources)
        self._divisions = self._lies = 0
        self._allocation: Allocation | None = None
        self.transfers = Transfers(self.terms)
        self._pool: float | None = None

    @property
    def resources(self) -> Resources:
        return self._resources

    @resources.setter
    def resources(self, resources: Resources) -> None:
        """Change the resources that are divided from now on."""
        self._anew = self._anew or resources != self._resources
        self._resources = resources

    @property
    def is_busy(self) -> bool:
        """True if there is anybody to divide for."""
        return bool(self._jobs) or self.transfers.is_busy

    def report_together(self, own_bytes_per_s: float = math.inf) -> Report:
        """Report all jobs as one whose samples are bytes of storage.

        own_bytes_per_s:  largest rate of the host, and the rate of transfers of unknown speed. By
                          what is leased now they would never be leased more.

        Its ceiling is the bytes/s that they could take with the cores there are, and its rate is
        the one they do take. It has no profile while one of them is unmeasured.
        """
        jobs = [job for job in self._jobs.values() if job.active]
        measurements = [job.measured() for job in jobs]
        taken = math.fsum(value.bytes_per_s for value in measurements if value is not None)
        moving = bound_number(min(self.transfers.could_bytes_per_s, own_bytes_per_s))
        taken = bound_number(taken + self.transfers.taken_bytes_per_s)
        profiles, objective = self._list_believed(jobs), self._objective
        if None in profiles:  # perhaps because it does not say how much is left
            profiles, objective = [job.believed for job in jobs], "utilisation"
        known = tuple(profile for profile in profiles if profile is not None)
        profile, could = None, 0.0
        if self.is_busy and len(known) == len(jobs):
            cores = replace(self._resources, bytes_per_s=math.inf)
            could = _predict_readable(known, cores, objective, self._floors) + moving
            could = bound_number(max(1.0, could))
            profile = {"samples_per_s": could, "cpu_s": 0.0, "storage_bytes": 1.0}
        stall = max(0.0, 1 - taken / could) if could else 0.0
        measured = JobMeasurement(samples_per_s=taken, bytes_per_s=taken, stall=stall)
        return Report(profile=profile, measured=measured)

    def join(
        self, member: int, now_s: float, *, job: str, rank: int, pid: int, name: str, owner: int = 0
    ) -> None:
        """Add a loader. Jobs of the same name are one if their owner is the same.

        member:  any number that no other member has.
        """
        assert member not in self._owners, f"member {member} has joined already"
        state = self._jobs.setdefault((owner, job), JobState(job, owner))
        state.members[member] = JobMember(name=name, rank=rank, pid=pid, heard_s=now_s)
        self._owners[member] = state
        self._anew = True

    def leave(self, member: int) -> None:
        """Remove a loader; its part is there for the others."""
        job = self._owners.pop(member)
        del job.members[member]
        job.fresh.discard(member)
        if not job.members:
            del self._jobs[job.owner, job.name]
        self._anew = True

    def report(self, member: int, now_s: float, report: Report) -> None:
        """Take the report of a member; raise UsageError that names an absurd value, and ignore
        it then."""
        profile = None if report.profile is None else read_profile(report.profile)
        job = self._owners[member]
        reporter = job.members[member]
        self._anew = self._anew or reporter.silent
        reporter.hear(now_s, profile, report.measured)
        job.fresh.add(member)
        if all(other.silent or key in job.fresh for key, other in job.members.items()):
            job.fresh.clear()
            self._window(job, now_s)

    def tick(self, now_s: float) -> dict[int, Lease]:
        """Let time pass; return the leases that are new or renewed, by member.

        To be called after any other call, and every `limits.broker_tick_s`.
        """
        self._anew = self._anew or self.transfers.is_busy != (self._pool is not None)
        if not self._anew and now_s < self._looked_s + limits.broker_tick_s:
            return {}
        self._looked_s = now_s
        for job in self._jobs.values():
            if job.fall_silent(now_s, self.terms):
                self._anew = True
            if -math.inf < job.doubted_until_s <= now_s:
                job.doubted_until_s = -math.inf
                self._anew = True
        if self._anew or (self._drifted and now_s - self._divided_s >= self.terms.hold_s):
            self._divide(now_s)
        return self._renew_leases(now_s)

    def grants(self, now_s: float) -> dict[Key, Grant]:
        """Return the grants to transfers that are new or renewed; to be called after `tick`."""
        return self.transfers.tick(now_s, math.inf if self._pool is None else self._pool)

    def _window(self, job: JobState, now_s: float) -> None:
        """Judge a job once all of its active members have reported again."""
        profile, measured = job.profile(), job.measured()
        if profile is None or measured is None or job.standing == "doubted":
            return
        if job.drift is None:
            job.drift = Drift(profile, tolerance=_drifts)
            self._anew = True
            return
        if job.share is not None and job.judge(now_s, profile, measured, self._even, self.terms):
            job.doubt(now_s + self.terms.doubt_s)
            self._lies += 1
            self._anew = True
        elif job.drift.observe(profile) is not None:
            self._drifted = True

    # -- dividing ----------------------------------------------------------------------------------

    def _divide(self, now_s: float) -> None:
        """Divide shares again, unless only drift asks for it and it does not pay."""
        jobs = list(self._jobs.values())
        profiles = self._list_believed(jobs)
        forced, self._anew, self._drifted = self._anew, False, False
        shared, pool = self._divide_beside_transfers(profiles)
        if not jobs:
            self._allocation, self._pool = None, pool
            return
        even = even_share(profiles, shared)
        best = allocate(profiles, shared, self._objective, self._floors)
        proposed = _mix_even(best, profiles, even)
        if not forced and not self._pays(jobs, profiles, proposed):
            return
        self._allocation, self._even, self._pool = proposed, even, pool
        self._divided_s = now_s
        self._divisions += 1
        dealt = zip(proposed.shares, proposed.predictions, proposed.floors, strict=True)
        for job, (share, expected, floor) in zip(jobs, dealt, strict=True):
            if job.share is None or _is_different(job.share, share):
                job.changed_s, job.off = now_s, 0
            job.share, job.prediction, job.floor = share, expected, floor
            self._deal(job)

    def _divide_beside_transfers(
        self, profiles: Sequence[JobProfile | None]
    ) -> tuple[Resources, float | None]:
        """Divide the resources between loaders and transfers; transfers may have none.

        Transfers have the bandwidth that loaders do not use, and `terms.transfer_part` at least.
        """
        there = self._resources
        if not self.transfers.is_busy:
            return there, None
        if there.bytes_per_s == math.inf or not profiles:
            return there, there.bytes_per_s
        most = replace(there, bytes_per_s=there.bytes_per_s * (1 - self.terms.transfer_part))
        if None in profiles:
            return most, there.bytes_per_s - most.bytes_per_s
        known = tuple(profile for profile in profiles if profile is not None)
        read = _roomy * _predict_readable(known, most, self._objective, self._floors)
        used = max(read, _least * there.bytes_per_s)
        shared = replace(there, bytes_per_s=min(used, most.bytes_per_s))
        return shared, there.bytes_per_s - shared.bytes_per_s

    def _list_believed(self, jobs: Sequence[JobState]) -> list[JobProfile | None]:
        """Return the profiles to make shares for, or None for an even share."""
        profiles = [job.believed for job in jobs]
        if self._objective == "makespan":
            profiles = [
                profile if profile and profile.remaining_samples else None for profile in profiles
            ]
        return profiles

    def _pays(
        self, jobs: Sequence[JobState], profiles: Sequence[JobProfile | None], proposed: Allocation
    ) -> bool:
        known = [row for row, profile in enumerate(profiles) if profile is not None]
        shares = [share for row in known if (share := jobs[row].share) is not None]
        return is_worthwhile(
            [profile for profile in profiles if profile is not None],
            shares,
            replace(proposed, floors=tuple(proposed.floors[row] for row in known)),
            horizon_s=self.terms.horizon_s,
            switch_s=self.terms.switch_s,
        )

    def _deal(self, job: JobState) -> None:
        """Divide the share of a job among its members: evenly among those that are active."""
        assert job.share is not None
        active = len(job.active)
        for member in job.members.values():
            fraction = 1 / len(job.members)
            if active:
                silent = len(job.members) - active
                fraction = (_standby if member.silent else 1.0) / (active + _standby * silent)
            member.lease = Lease(
                cores=fraction * job.share.workers,
                bytes_per_s=encode_rate(fraction * job.share.bytes_per_s),
                floor_cores=fraction * self._even.workers,
                floor_bytes_per_s=encode_rate(fraction * self._even.bytes_per_s),
                lasts_s=member.patience_s(self.terms),
            )
            member.leased_s = -math.inf

    def _renew_leases(self, now_s: float) -> dict[int, Lease]:
        """Return the leases that members are to be sent."""
        leases = {}
        for job in self._jobs.values():
            for key, member in job.members.items():
                assert member.lease is not None
                lasts_s = member.patience_s(self.terms)
                new = member.leased_s == -math.inf
                # The one that it has may end sooner than one that is made now.
                renew_s = min(lasts_s, member.lease.lasts_s) / 2
                if new or (now_s - member.leased_s >= renew_s and not member.silent):
                    member.leased_s = now_s
                    member.lease = leases[key] = replace(member.lease, lasts_s=lasts_s)
        return leases

    def state(self, now_s: float) -> dict[str, Any]:
        """Return the whole state for JSON: rates by second, times in seconds from now."""
        worth = None if self._allocation is None else self._allocation.worth
        return {
            "cores": self._resources.cores,
            "bytes_per_s": encode_rate(self._resources.bytes_per_s),
            "objective": self._objective,
            "floors": self._floors,
            "divisions": self._divisions,
            "lies": self._lies,
            "value": None if self._allocation is None else self._allocation.value,
            "worth": worth and {"core": worth.core, "byte_per_s": worth.byte_per_s},
            "jobs": [job.state(now_s) for job in self._jobs.values()],
            "transfers": self.transfers.state(),
        }


def is_worthwhile(
    jobs: Sequence[JobProfile],
    shares: Sequence[Share],
    proposed: Allocation,
    *,
    horizon_s: float,
    switch_s: float,
) -> bool:
    """True if a proposal should replace shares: a job is below its floor, a promise, or the gain
    over the horizon exceeds the cost of switching.

    jobs:       as they are now, the same as in the proposal.
    horizon_s:  expected lifetime of the new shares.
    switch_s:   seconds of all jobs' work lost by switching.
    """
    now = [predict(job, share).samples_per_s for job, share in zip(jobs, shares, strict=True)]
    if any(rate < 0.99 * floor for rate, floor in zip(now, proposed.floors, strict=True)):
        return True
    objective: Objective = proposed.objective
    value = score(jobs, now, objective)
    return (proposed.value - value) * horizon_s > switch_s * value


@lru_cache(maxsize=4)
def _predict_readable(
    profiles: tuple[JobProfile, ...], resources: Resources, objective: Objective, floors: float
) -> float:
    """Return the bytes/s that these jobs would take; computed once while their profiles stay the
    same."""
    best = allocate(profiles, resources, objective, floors).predictions
    return math.fsum(
        prediction.samples_per_s * profile.storage_bytes / profile.efficiency
        for profile, prediction in zip(profiles, best, strict=True)
        if prediction is not None
    )


def _mix_even(
    proposed: Allocation, profiles: Sequence[JobProfile | None], even: Share
) -> Allocation:
    """Mix a little of the even split into the proposal, and deal the resources that nobody was
    given.

    That keeps every floor: a job needs no more than its even share of any resource for its
    even-split rate.
    """
    rows = [row for row, profile in enumerate(profiles) if profile is not None]
    shares, predictions = list(proposed.shares), list(proposed.predictions)
    cores = _deal_all([shares[row].workers for row in rows], even.workers)
    rates = _deal_all([shares[row].bytes_per_s for row in rows], even.bytes_per_s)
    for row, workers, rate in zip(rows, cores, rates, strict=True):
        profile, named = profiles[row], predictions[row]
        assert profile is not None
        assert named is not None
        shares[row] = replace(shares[row], workers=workers, bytes_per_s=rate)
        prediction = predict(profile, shares[row])
        if "model" not in (prediction.binding, named.binding):
            prediction = prediction._replace(binding=named.binding)
        predictions[row] = prediction
    known = [value for value in profiles if value is not None]
    reached = [value.samples_per_s for value in predictions if value is not None]
    return replace(
        proposed,
        shares=tuple(shares),
        predictions=tuple(predictions),
        value=score(known, reached, proposed.objective),
    )


def _deal_all(amounts: Sequence[float], even: float) -> list[float]:
    """Deal all of one resource to these: `even` times their number."""
    if even == math.inf:
        return [even] * len(amounts)
    spare = even - math.fsum(amounts) / max(1, len(amounts))
    return [(1 - _least) * (amount + max(0.0, spare)) + _least * even for amount in amounts]


def _is_different(one: Share, other: Share) -> bool:
    """True if the job may take another amount with the other share."""
    pairs = (one.workers, other.workers), (one.bytes_per_s, other.bytes_per_s)
    return any(now != then and abs(now - then) > 0.01 * then for then, now in pairs)
