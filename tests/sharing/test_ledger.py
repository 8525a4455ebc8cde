"""The ledger in virtual time: jobs that come, go, fall silent, change and lie."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.errors import UsageError
from penstock.sharing.allocation import Objective, Resources, allocate
from penstock.sharing.job_state import JobProfile, Share, predict
from penstock.sharing.lease import JobMeasurement, Lease, Report, Terms
from penstock.sharing.ledger import Ledger
from tests.sharing.highs import solve_by_highs

HOST = Resources(cores=8, bytes_per_s=1e9)
TERMS = Terms()
TICK_S = 0.25
CLOSE = 1e-9

rates = st.floats(10, 1e5)
profiles = st.builds(
    JobProfile,
    samples_per_s=rates,
    cpu_s=st.just(0.0) | st.floats(1e-5, 0.1),
    storage_bytes=st.just(0.0) | st.floats(10, 1e7),
    remaining_samples=st.none() | st.floats(1, 1e9),
)


def said(profile: JobProfile) -> dict[str, Any]:
    """The profile as a loader reports it of itself."""
    names = ("samples_per_s", "cpu_s", "storage_bytes", "remaining_samples")
    return {name: getattr(profile, name) for name in names}


@dataclass
class Loader:
    """A member as the test has it.

    profile:  what it is.
    claims:   what it says that it is.
    leases:   that it was sent, the last one at `since_s`.
    period_s: of its reports; None while it says nothing.
    """

    job: str
    profile: JobProfile
    claims: JobProfile | None
    period_s: float | None = 0.5
    greed: float = 1.0
    lease: Lease | None = None
    since_s: float = 0.0
    heard_s: float = 0.0
    reports: int = 0

    def report(self) -> Report:
        reached = predict(self.profile, share_of([self])) if self.lease is not None else None
        rate = 0.0 if reached is None else reached.samples_per_s
        return Report(
            profile=None if self.claims is None else said(self.claims),
            measured=JobMeasurement(
                samples_per_s=rate,
                cores=self.greed * rate * self.profile.cpu_s,
                bytes_per_s=self.greed * rate * self.profile.storage_bytes,
                stall=0.0 if reached is None else max(0.0, reached.idle),
            ),
        )


def share_of(loaders: Sequence[Loader]) -> Share:
    """The share that they hold together."""
    leases = [each.lease for each in loaders if each.lease is not None]
    bytes_per_s = [math.inf if each.bytes_per_s is None else each.bytes_per_s for each in leases]
    return Share(
        workers=math.fsum(each.cores for each in leases), bytes_per_s=math.fsum(bytes_per_s)
    )


@dataclass
class Host:
    """A ledger, its loaders, and time."""

    ledger: Ledger = field(default_factory=lambda: Ledger(HOST))
    loaders: dict[int, Loader] = field(default_factory=dict)
    now_s: float = 0.0
    joined: int = 0

    def join(self, job: str, profile: JobProfile, claims: JobProfile | None) -> Loader:
        loader = Loader(job, profile, claims, heard_s=self.now_s)
        self.loaders[self.joined] = loader
        self.ledger.join(self.joined, self.now_s, job=job, rank=0, pid=1, name="train")
        self.joined += 1
        self.tick()
        return loader

    def leave(self, loader: Loader) -> None:
        number = next(key for key, each in self.loaders.items() if each is loader)
        self.ledger.leave(number)
        del self.loaders[number]
        self.tick()

    def tick(self) -> None:
        for number, lease in self.ledger.tick(self.now_s).items():
            self.loaders[number].lease = lease
            self.loaders[number].since_s = self.now_s

    def report(self, loader: Loader) -> None:
        number = next(key for key, each in self.loaders.items() if each is loader)
        self.ledger.report(number, self.now_s, loader.report())
        loader.heard_s = self.now_s
        loader.reports += 1

    def wait(self, seconds: float) -> None:
        """Time passes, and everybody does what it does in it."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += TICK_S
            for each in self.loaders.values():
                if each.period_s is not None and self.now_s - each.heard_s >= each.period_s:
                    self.report(each)
            self.tick()

    def job(self, name: str) -> dict[str, Any]:
        """The ledger's entry of a job; it can be said in JSON."""
        state = json.loads(json.dumps(self.ledger.state(self.now_s), allow_nan=False))
        found: dict[str, Any] = next(each for each in state["jobs"] if each["job"] == name)
        return found

    def until(self, name: str, standing: str, *, within_s: float) -> None:
        """Time passes until a job stands so."""
        end_s = self.now_s + within_s
        while self.job(name)["standing"] != standing:
            assert self.now_s < end_s
            self.wait(TICK_S)

    def names(self) -> list[str]:
        return sorted({each.job for each in self.loaders.values()})

    def of(self, job: str) -> list[Loader]:
        return [each for each in self.loaders.values() if each.job == job]


class Days(RuleBasedStateMachine):
    """Whatever happens on a host, what the ledger promises holds."""

    resources = HOST
    objective: Objective = "utilisation"

    def __init__(self) -> None:
        super().__init__()
        self.host = Host(Ledger(self.resources, self.objective))

    @rule(job=st.sampled_from("abcd"), profile=profiles, lie=st.sampled_from([1, 1, 1, 10, 0.1]))
    def join(self, job: str, profile: JobProfile, lie: float) -> None:
        claims = replace(profile, cpu_s=profile.cpu_s * lie, storage_bytes=profile.storage_bytes)
        self.host.join(job, profile, claims)

    @rule(job=st.sampled_from("abcd"), profile=profiles)
    def join_unmeasured(self, job: str, profile: JobProfile) -> None:
        self.host.join(job, profile, None)

    @precondition(lambda self: self.host.loaders)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.host.leave(self._one(data))

    @precondition(lambda self: self.host.loaders)
    @rule(data=st.data(), profile=profiles)
    def change(self, data: st.DataObject, profile: JobProfile) -> None:
        found = self._one(data)
        found.profile = found.claims = profile

    @precondition(lambda self: self.host.loaders)
    @rule(data=st.data(), period_s=st.none() | st.floats(0.1, 30), greed=st.sampled_from([1, 9]))
    def behave(self, data: st.DataObject, period_s: float | None, greed: float) -> None:
        found = self._one(data)
        found.period_s, found.greed = period_s, greed

    @precondition(lambda self: self.host.loaders)
    @rule(data=st.data())
    def talk(self, data: st.DataObject) -> None:
        """Much more often than asked for."""
        found = self._one(data)
        for _ in range(5):
            self.host.report(found)
        self.host.tick()

    @precondition(lambda self: self.host.loaders)
    @rule(data=st.data(), value=st.sampled_from([0.0, -1.0, math.inf, math.nan, "1", None, [1]]))
    def talk_nonsense(self, data: st.DataObject, value: Any) -> None:
        number = data.draw(st.sampled_from(sorted(self.host.loaders)))
        profile = {"samples_per_s": value, "cpu_s": 0.0, "storage_bytes": 0.0}
        report = Report(profile=profile, measured=JobMeasurement(samples_per_s=1.0))
        with pytest.raises(UsageError, match=r"JobProfile\.samples_per_s"):
            self.host.ledger.report(number, self.host.now_s, report)

    @rule(seconds=st.sampled_from([0.25, 1, 4, 8, 40]))
    def wait(self, seconds: float) -> None:
        self.host.wait(seconds)

    def _one(self, data: st.DataObject) -> Loader:
        return data.draw(st.sampled_from(list(self.host.loaders.values())))

    @invariant()
    def all_of_it_and_no_more_is_leased(self) -> None:
        """Leases together are what there is; so are floors."""
        leases = [each.lease for each in self.host.loaders.values()]
        if not leases:
            return
        for attribute in ("cores", "bytes_per_s"):
            there = getattr(self.resources, attribute)
            if there == math.inf:
                assert all(each is not None and each.bytes_per_s is None for each in leases)
                continue
            for name in (attribute, f"floor_{attribute}"):
                total = math.fsum(getattr(each, name) for each in leases)
                assert total == pytest.approx(there, rel=CLOSE)

    @invariant()
    def who_reports_has_a_lease_in_force(self) -> None:
        for each in self.host.loaders.values():
            assert each.lease is not None
            if self.host.now_s - each.heard_s <= TERMS.lease_s:
                assert self.host.now_s < each.since_s + each.lease.lasts_s

    @invariant()
    def who_is_not_believed_has_an_even_share(self) -> None:
        names = self.host.names()
        for name in names:
            found = self.host.job(name)
            if found["standing"] != "measured":
                held = share_of(self.host.of(name))
                assert held.workers == pytest.approx(self.resources.cores / len(names))
                floors = [each.lease.floor_cores for each in self.host.of(name) if each.lease]
                assert math.fsum(floors) == pytest.approx(self.resources.cores / len(names))

    @invariant()
    def nobody_is_left_without(self) -> None:
        """So that it can be seen to need more."""
        count = max(1, len(self.host.names()))
        for name in self.host.names():
            held = share_of(self.host.of(name))
            assert held.workers >= 0.0099 * self.resources.cores / count
            assert held.bytes_per_s >= 0.0099 * self.resources.bytes_per_s / count / 2

    @invariant()
    def who_is_silent_too_long_is_said_to_be(self) -> None:
        for name in self.host.names():
            quiet = [self.host.now_s - each.heard_s for each in self.host.of(name)]
            if min(quiet) > TERMS.patience_s:
                assert self.host.job(name)["standing"] in ("silent", "doubted")
            if min(quiet) <= TERMS.lease_s - TICK_S:
                assert self.host.job(name)["standing"] != "silent"


class DaysOfOneLimit(Days):
    """Storage that is not limited."""

    resources = Resources(cores=3)


class DaysToTheEnd(Days):
    """With the objective that needs to know what is left."""

    objective: Objective = "makespan"


quick = settings(stateful_step_count=30)
TestDays = Days.TestCase
TestDays.settings = quick
TestDaysOfOneLimit = DaysOfOneLimit.TestCase
TestDaysOfOneLimit.settings = quick
TestDaysOfOneLimit.pytestmark = [pytest.mark.long]  # type: ignore[attr-defined]
TestDaysToTheEnd = DaysToTheEnd.TestCase
TestDaysToTheEnd.settings = quick
TestDaysToTheEnd.pytestmark = [pytest.mark.long]  # type: ignore[attr-defined]


plain = st.builds(
    JobProfile,
    samples_per_s=rates,
    cpu_s=st.just(0.0) | st.floats(1e-5, 0.1),
    storage_bytes=st.just(0.0) | st.floats(10, 1e7),
)


@given(st.lists(plain, min_size=1, max_size=6), st.sampled_from(["utilisation", "samples"]))
def test_honest_jobs_get_the_best_shares(jobs: list[JobProfile], objective: Objective) -> None:
    """A few seconds after they came: nobody below an even split, and together as much as the
    optimum that another solver finds, but for what each keeps of what it does not need."""
    host = Host(Ledger(HOST, objective))
    for number, profile in enumerate(jobs):
        host.join(str(number), profile, profile)
    host.wait(5)
    best = allocate(jobs, HOST, objective, solver=solve_by_highs)
    shares = [share_of(host.of(str(number))) for number in range(len(jobs))]
    reached = [predict(*each).samples_per_s for each in zip(jobs, shares, strict=True)]
    for floor, rate in zip(best.floors, reached, strict=True):
        assert rate >= floor * (1 - 1e-6)
    if objective == "utilisation":
        value = math.fsum(rate / job.samples_per_s for rate, job in zip(reached, jobs, strict=True))
    else:
        value = math.fsum(reached)
    assert value >= best.value * 0.97


@given(st.lists(plain, min_size=1, max_size=5), st.integers(0, 4))
def test_departures_give_everything_back(jobs: list[JobProfile], stays: int) -> None:
    """The job that is left alone has all of it."""
    host = Host()
    loaders = [host.join(str(number), each, each) for number, each in enumerate(jobs)]
    host.wait(2)
    left = loaders.pop(stays % len(loaders))
    for each in loaders:
        host.leave(each)
    assert left.lease is not None
    assert left.lease.cores == pytest.approx(HOST.cores)
    assert left.lease.floor_cores == pytest.approx(HOST.cores)
    assert left.lease.bytes_per_s == pytest.approx(HOST.bytes_per_s)


DECODES = JobProfile(samples_per_s=1000, cpu_s=20e-3, storage_bytes=1e3)
"""Wants 20 cores."""
READS = JobProfile(samples_per_s=1000, cpu_s=1e-4, storage_bytes=10e6)
"""Wants 10 GB/s."""
IDLE = JobProfile(samples_per_s=10, cpu_s=1e-3, storage_bytes=1e4)
"""Its model takes no more."""


def test_arrival_is_an_even_share_until_measured() -> None:
    host = Host()
    first = host.join("a", DECODES, DECODES)
    host.wait(3)
    assert share_of([first]).workers == HOST.cores
    second = host.join("b", IDLE, None)
    assert [share_of([each]).workers for each in (first, second)] == [4.0, 4.0]
    host.wait(60)
    assert share_of([second]).workers == 4.0, "nothing is known of it"
    second.claims = IDLE
    host.wait(3)
    assert share_of([first]).workers > 7.5


def test_ranks_of_a_job_share_what_it_has() -> None:
    """Evenly, while they are active; who comes back has its part again at its first report."""
    host = Host()
    host.join("other", READS, READS)
    ranks = [host.join("job", DECODES, DECODES) for _ in range(3)]
    host.wait(5)
    whole = share_of(ranks)
    assert whole.workers > 7.5
    assert [share_of([each]).workers for each in ranks] == [
        pytest.approx(whole.workers / 3, rel=1e-4)
    ] * 3
    ranks[0].period_s = None
    host.wait(20)
    parts = [share_of([each]).workers for each in ranks]
    assert parts[0] < 0.1
    assert parts[1] == parts[2] > 3.6
    ranks[0].period_s = 0.5
    host.wait(TICK_S)
    assert [share_of([each]).workers for each in ranks] == [
        pytest.approx(whole.workers / 3, rel=1e-4)
    ] * 3


def test_a_rate_is_shown_while_the_next_window_goes_on() -> None:
    """Reports come more often than windows end: those without one leave the last rate, of a job of
    two ranks as well."""
    ledger = Ledger(HOST)
    profile = JobProfile(samples_per_s=100, cpu_s=0.01, storage_bytes=1e5)
    ended = Report(
        profile=said(profile), measured=JobMeasurement(samples_per_s=40.0, cores=0.4, stall=0.6)
    )
    goes_on = Report(profile=None, measured=JobMeasurement(samples_per_s=0.0, step_s=0.1))
    for member in (1, 2):
        ledger.join(member, 0.0, owner=1, job="one", rank=member, pid=member, name="train")
        ledger.report(member, 0.0, goes_on)
    (job,) = ledger.state(0.0)["jobs"]
    assert job["measured"] == 0
    for time_s in (1.0, 1.5, 2.0, 2.5):
        ledger.report(1, time_s, ended if time_s % 1 == 0 else goes_on)
        ledger.report(2, time_s, goes_on if time_s % 1 == 0 else ended)
        ledger.tick(time_s)
        (job,) = ledger.state(time_s)["jobs"]
        assert job["measured"] == (40.0 if time_s == 1.0 else 80.0)
        assert next(loader["stall"] for loader in job["members"]) == 0.6


def test_jobs_of_two_owners_are_two() -> None:
    ledger = Ledger(HOST)
    for number, owner in enumerate((1000, 1000, 1001)):
        ledger.join(number, 0.0, job="train", rank=0, pid=1, name="", owner=owner)
    found = ledger.tick(0.0)
    assert [found[number].cores for number in range(3)] == [2.0, 2.0, 4.0]


def test_noise_changes_nothing() -> None:
    """However long what is measured moves within a fifth."""
    host = Host()
    loaders = [host.join(name, each, each) for name, each in (("a", DECODES), ("b", READS))]
    host.wait(5)
    before = host.ledger.state(host.now_s)["divisions"]
    for window in range(100):
        for place, each in enumerate(loaders):
            assert each.claims is not None
            factor = 1 + 0.15 * math.sin(window * (1 + place))
            each.claims = replace(each.profile, cpu_s=each.profile.cpu_s * factor)
        host.wait(0.5)
    assert host.ledger.state(host.now_s)["divisions"] == before


def test_a_change_for_good_is_followed() -> None:
    """A job whose decoding becomes cheap gives its cores to who decodes, soon and not often."""
    host = Host()
    changing, other = (host.join(name, DECODES, DECODES) for name in "ab")
    host.wait(5)
    assert share_of([other]).workers == pytest.approx(4)
    before = host.ledger.state(host.now_s)["divisions"]
    changing.profile = changing.claims = IDLE
    host.wait(6)
    assert share_of([other]).workers > 7.5
    host.wait(60)
    assert host.ledger.state(host.now_s)["divisions"] <= before + 3


def test_what_does_not_pay_is_not_done() -> None:
    """A job that changes for good, but in what limits nobody, changes no share."""
    host = Host()
    idle = host.join("idle", IDLE, IDLE)
    host.join("other", DECODES, DECODES)
    host.wait(5)
    before = share_of([idle]), host.ledger.state(host.now_s)["divisions"]
    idle.profile = idle.claims = replace(IDLE, storage_bytes=2e4)
    host.wait(60)
    assert (share_of([idle]), host.ledger.state(host.now_s)["divisions"]) == before


def test_shares_hold_for_a_while() -> None:
    """However many jobs change at different times."""
    host = Host()
    jobs = [host.join(str(number), DECODES, DECODES) for number in range(6)]
    host.wait(5)
    before = host.ledger.state(host.now_s)["divisions"]
    for window in range(120):
        changing = jobs[window % len(jobs)]
        changing.profile = changing.claims = READS if changing.claims == DECODES else DECODES
        host.wait(0.5)
    made = host.ledger.state(host.now_s)["divisions"] - before
    assert 10 < made <= 60 / TERMS.hold_s


def test_a_lease_is_renewed_before_it_ends_though_later_ones_last_longer() -> None:
    """A member whose steps become longer is leased for longer, but has the shorter lease still."""
    ledger = Ledger(Resources(cores=1))
    ledger.join(0, 0.0, job="a", rank=0, pid=1, name="train")
    ends_s = lasts_s = ledger.tick(0.0)[0].lasts_s
    for now_s in (0.25 * tick for tick in range(1, 40)):
        if now_s == 4.75:  # it is patient for 9.5 s from now on
            idle = JobMeasurement(samples_per_s=0.0)
            ledger.report(0, now_s, Report(profile=None, measured=idle))
        if leases := ledger.tick(now_s):
            lasts_s = leases[0].lasts_s
            ends_s = now_s + lasts_s
        assert ends_s - now_s > 2, now_s
    assert lasts_s == 9.5


def test_who_is_silent_has_no_lease_renewed() -> None:
    """A silent job is told once what it has; that lasts until it reads it, and no longer."""
    host = Host()
    quiet, other = host.join("quiet", READS, READS), host.join("other", DECODES, DECODES)
    host.wait(5)
    quiet.period_s = None
    host.wait(10)
    told_s = quiet.since_s
    host.wait(60)
    assert quiet.since_s == told_s
    assert other.since_s > told_s + 50


@pytest.mark.parametrize(
    ("is_so", "claims"),
    [
        (IDLE, replace(IDLE, samples_per_s=1000.0, cpu_s=20e-3)),  # that it could use more
        (DECODES, replace(DECODES, cpu_s=4e-3)),  # that a core brings more than it does
        (DECODES, replace(DECODES, cpu_s=100e-3)),  # or less
    ],
)
def test_who_lies_is_at_its_floor(is_so: JobProfile, claims: JobProfile) -> None:
    """For a while, then it is believed again; it is counted."""
    host = Host()
    honest = host.join("honest", READS, READS)
    liar = host.join("liar", is_so, claims)
    host.wait(3)
    assert share_of([liar]).workers > 6
    host.until("liar", "doubted", within_s=TERMS.settle_s + TERMS.drain_s + 5)
    assert share_of([liar]).workers == pytest.approx(4)
    assert share_of([liar]).bytes_per_s == pytest.approx(5e8)
    liar.profile = liar.claims = DECODES
    host.wait(TERMS.doubt_s - 1)
    assert host.job("liar")["standing"] == "doubted"
    host.wait(2)
    found = host.job("liar")
    assert (found["standing"], found["lies"]) == ("measured", 1)
    assert host.job("honest")["lies"] == 0
    assert honest.lease is not None


def test_who_takes_more_than_it_was_leased_is_at_its_floor() -> None:
    host = Host()
    host.join("other", READS, READS)
    greedy = host.join("greedy", DECODES, DECODES)
    greedy.greed = 1.4
    host.wait(20)
    assert host.job("greedy")["standing"] == "measured"
    greedy.greed = 1.6
    host.until("greedy", "doubted", within_s=5)
    assert share_of([greedy]).workers == pytest.approx(4)


def test_what_was_read_ahead_is_no_lie() -> None:
    """After a cut a job may bring more than predicted for as long as that lasts."""
    host = Host()
    job = host.join("job", DECODES, DECODES)
    host.wait(5)
    host.join("other", DECODES, DECODES)
    job.profile = replace(DECODES, cpu_s=1e-3)
    host.wait(TERMS.drain_s - 5)
    assert host.job("job")["standing"] == "measured"


def test_long_steps_are_not_silence() -> None:
    """A report every ten seconds is known as such, up to a limit; leases last accordingly."""
    host = Host()
    host.join("other", READS, READS)
    slow = host.join("slow", DECODES, DECODES)
    slow.period_s = 10.0
    host.wait(45)
    divisions = host.ledger.state(host.now_s)["divisions"]
    for _ in range(40):
        assert host.job("slow")["standing"] == "measured"
        assert slow.lease is not None
        assert host.now_s < slow.since_s + slow.lease.lasts_s
        host.wait(1)
    assert host.ledger.state(host.now_s)["divisions"] == divisions
    slow.period_s = None
    host.wait(20)
    assert host.job("slow")["standing"] == "silent"


def test_efficiency_is_followed_where_the_loader_binds() -> None:
    """A job that brings four fifths of what was predicted, and waits for its loader, is taken for
    what it brings; one whose model binds is not."""
    host = Host()
    loader = host.join("job", DECODES, DECODES)
    model = host.join("idle", IDLE, IDLE)
    loader.profile = replace(DECODES, efficiency=0.8)
    host.wait(30)
    found = host.job("job")
    assert found["efficiency"] == pytest.approx(0.8, rel=0.02)
    assert found["predicted"] == pytest.approx(found["measured"], rel=0.25)
    assert host.job("idle")["efficiency"] == 1.0
    assert model.lease is not None


def test_more_or_less_to_divide() -> None:
    host = Host()
    job = host.join("job", READS, READS)
    host.wait(3)
    host.ledger.resources = replace(HOST, bytes_per_s=1e8)
    host.tick()
    assert share_of([job]).bytes_per_s == pytest.approx(1e8)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("samples_per_s", each) for each in (0.0, -1.0, math.inf, math.nan, True, "1", None)),
        *(("cpu_s", each) for each in (-1e-9, math.inf, math.nan, None)),
        *(("storage_bytes", each) for each in (-1.0, math.inf, 10**400, None)),
        ("remaining_samples", 0.0),
        ("efficiency", 2.0),
        ("gpu", 1.0),
    ],
)
def test_absurd_profiles_are_refused_by_name(name: str, value: Any) -> None:
    """And are no report: who says nothing else is silent."""
    ledger = Ledger(HOST)
    ledger.join(0, 0.0, job="job", rank=0, pid=1, name="train")
    profile = {"samples_per_s": 1.0, "cpu_s": 1.0, "storage_bytes": 1.0, name: value}
    report = Report(profile=profile, measured=JobMeasurement(samples_per_s=1.0))
    with pytest.raises(UsageError, match=rf"JobProfile\.{name}"):
        ledger.report(0, 1.0, report)
    assert ledger.tick(TERMS.lease_s + TICK_S)[0].cores == HOST.cores
    assert ledger.state(10.0)["jobs"][0]["standing"] == "silent"


@given(
    st.lists(
        st.builds(
            JobProfile,
            samples_per_s=st.sampled_from([1e-12, 1.0, 1e18]),
            cpu_s=st.sampled_from([0.0, 1e-12, 1.0, 1e18]),
            storage_bytes=st.sampled_from([0.0, 1e-12, 1.0, 1e18]),
            remaining_samples=st.sampled_from([1e-12, 1.0, 1e18]),
        ),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(["utilisation", "samples", "makespan"]),
)
def test_numbers_at_the_edge_break_nothing(jobs: list[JobProfile], objective: Objective) -> None:
    """Everybody has a lease, and all together no more than there is."""
    host = Host(Ledger(HOST, objective))
    for number, profile in enumerate(jobs):
        host.join(str(number % 4), profile, profile)
    host.wait(10)
    leases = [each.lease for each in host.loaders.values()]
    assert math.fsum(each.cores for each in leases if each) <= HOST.cores * (1 + CLOSE)
    assert all(each is not None and each.cores > 0 for each in leases)


def test_wrong_use() -> None:
    for floors in (0.0, -1.0, 1.5, math.nan):
        with pytest.raises(UsageError, match="floors"):
            Ledger(HOST, floors=floors)
    with pytest.raises(UsageError, match="objective"):
        Ledger(HOST, "throughput")  # type: ignore[arg-type]
    for name in ("lease_s", "report_s", "lie", "doubt_s"):
        with pytest.raises(UsageError, match=rf"Terms\.{name}"):
            Terms(**{name: 0.0})
