"""The roofline: formulas, properties of what binds, and verdicts on runs."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.doctor.roofline import (
    NAMES,
    RESOURCES,
    DataProfile,
    Demand,
    Resource,
    Roofline,
    Supply,
    computing_supply,
    estimate_roofline,
)
from penstock.errors import UsageError
from penstock_bench.results.record import RunCounts, judge_run, staging_supply

rates = st.floats(1e-3, 1e12)
demands = st.builds(
    Demand,
    bytes=st.floats(1, 1e9),
    reads=st.floats(1e-3, 100),
    opens=st.floats(1e-3, 100),
    copied_bytes=st.floats(1, 1e9),
)
supplied = st.dictionaries(
    st.sampled_from(RESOURCES), st.builds(Supply, rates, st.just("drawn")), min_size=2
)
datas = st.none() | st.builds(
    DataProfile,
    total_bytes=st.integers(0, 1 << 50),
    memory_bytes=st.integers(0, 1 << 40),
    own_files=st.booleans(),
)
Supplies = dict[Resource, Supply]


def raised(supplies: Supplies, resource: Resource, factor: float) -> Supplies:
    return {**supplies, resource: Supply(supplies[resource].per_s * factor, "raised")}


def test_ceilings_are_capacity_over_demand() -> None:
    """Every formula, by numbers worked out apart from the code."""
    roofline = estimate_roofline(
        {
            "compute": computing_supply(0.05, 32, ranks=2),
            "decode": Supply(8 / 0.004, "8 cores, 4 ms each"),
            "bandwidth": Supply(200e6, ""),
            "iops": Supply(5000, ""),
            "metadata": Supply(3000, ""),
            "copy": Supply(8e9, ""),
            "staging": staging_supply(1_000_000, 500.0, 4),
        },
        # Samples of 400 kB, two in a read; a file holds ten.
        Demand(bytes=400e3, reads=0.5, opens=0.1, copied_bytes=800e3),
    )
    assert {
        ceiling.resource: ceiling.samples_per_s for ceiling in roofline.ceilings
    } == pytest.approx(
        {
            "compute": 1280,  # R * B / c
            "decode": 2000,  # cores / t
            "bandwidth": 500,  # W / bytes
            "iops": 10_000,  # IOPS * samples per read
            "metadata": 30_000,  # opens * samples per open
            "copy": 10_000,  # W / bytes
            "staging": 8000,  # E * N / T
        }
    )
    assert (roofline.bound, roofline.samples_per_s) == ("bandwidth", 500)
    assert roofline.headroom == pytest.approx(2.56)
    assert roofline.utilisation == pytest.approx(500 / 1280)  # min(1, X * c / (R * B))


@given(supplied, demands, datas)
def test_the_lowest_ceiling_binds(
    supplies: Supplies, demand: Demand, data: DataProfile | None
) -> None:
    """The lowest ceiling is the least of supply over demand, of bandwidth alone if reads are large;
    the others follow in sequence; JSON holds all of them."""
    roofline = estimate_roofline(supplies, demand, data=data)
    large = "bandwidth" in supplies and demand.bytes >= (1 << 20) * demand.reads
    least = min(
        supply.per_s / demand.of(resource)
        for resource, supply in supplies.items()
        if not (large and resource == "iops")
    )
    assert roofline.samples_per_s == least
    allowed = [ceiling.samples_per_s for ceiling in roofline.ceilings]
    assert allowed == sorted(allowed)
    assert roofline.headroom >= 1
    assert roofline.utilisation is None or 0 < roofline.utilisation <= 1
    assert roofline.advice[0].startswith(NAMES[roofline.bound])
    assert json.loads(json.dumps(roofline.as_json(), allow_nan=False))["bound"] == roofline.bound


@given(supplied, demands, datas, st.data(), st.floats(1, 1e6))
def test_raising_what_does_not_bind_changes_nothing(
    supplies: Supplies, demand: Demand, data: DataProfile | None, draw: st.DataObject, factor: float
) -> None:
    """Neither what binds nor the rate."""
    roofline = estimate_roofline(supplies, demand, data=data)
    others = [resource for resource in supplies if resource != roofline.bound]
    resource = draw.draw(st.sampled_from(others))
    after = estimate_roofline(raised(supplies, resource, factor), demand, data=data)
    assert (after.bound, after.samples_per_s) == (roofline.bound, roofline.samples_per_s)


@given(supplied, demands)
def test_raising_what_binds_by_its_headroom_makes_the_next_bind(
    supplies: Supplies, demand: Demand
) -> None:
    """The rate grows by the headroom, and no further however much it is raised."""
    roofline = estimate_roofline(supplies, demand)
    assume(roofline.headroom < 1e9)
    next_bound, next_rate = roofline.ceilings[1].resource, roofline.ceilings[1].samples_per_s
    for factor in (1.001, 1000):
        after = estimate_roofline(
            raised(supplies, roofline.bound, roofline.headroom * factor), demand
        )
        assert (after.bound, after.samples_per_s) == (next_bound, next_rate)
    before = estimate_roofline(raised(supplies, roofline.bound, roofline.headroom**0.5), demand)
    assert before.samples_per_s == pytest.approx(roofline.samples_per_s * roofline.headroom**0.5)


@given(supplied, demands, st.floats(1e-3, 1e3))
def test_twice_of_all_is_twice_as_fast(supplies: Supplies, demand: Demand, factor: float) -> None:
    """Scaling every supply scales the rate, and binds the same."""
    roofline = estimate_roofline(supplies, demand)
    scaled: Supplies = {name: Supply(s.per_s * factor, s.how) for name, s in supplies.items()}
    after = estimate_roofline(scaled, demand)
    assert after.samples_per_s == pytest.approx(roofline.samples_per_s * factor)
    assert after.bound == roofline.bound or roofline.headroom < 1.0001


@given(supplied, demands, st.floats(0, 1))
def test_a_cache_takes_storage_out(supplies: Supplies, demand: Demand, hit: float) -> None:
    """A hit never makes it slower; where everything hits, storage is no ceiling."""
    before, after = estimate_roofline(supplies, demand), demand.cached(hit)
    left = [name for name in supplies if after.of(name) > 0]
    if left:
        assert estimate_roofline(supplies, after).samples_per_s >= before.samples_per_s
    full = demand.cached(1.0)
    assert not any(full.of(name) for name in ("bandwidth", "iops", "metadata"))
    assert full.copied_bytes == demand.copied_bytes


# -- advice ----------------------------------------------------------------------------------------


def told(found_by: Supplies, demand: Demand, data: DataProfile | None = None) -> str:
    return "\n".join(estimate_roofline(found_by, demand, data=data).advice)


def test_advice_on_bandwidth_names_the_cache_and_the_factor() -> None:
    """The advice names the binding resource, the next one, and the gain of a cache, in numbers."""
    supplies: Supplies = {
        "bandwidth": Supply(41e6, ""),
        "compute": Supply(980, ""),
        "copy": Supply(1e9, ""),
    }
    data = DataProfile(total_bytes=12_000_000_000, memory_bytes=20_000_000_000)
    advice = told(supplies, Demand(bytes=100e3, copied_bytes=100e3), data)
    assert "storage bandwidth binds at 410 samples/s; compute allows 980: 2.4x" in advice
    assert "a cache of 12 GB, which this host's memory holds, would take storage out" in advice
    assert "up to 980 samples/s, 2.4x, where compute binds" in advice
    assert "storage of 2.4x the bandwidth" in advice
    small = DataProfile(total_bytes=12_000_000_000, memory_bytes=5_000_000_000)
    assert "room for 5 GB: 3 such hosts" in told(supplies, Demand(bytes=100e3), small)


def test_advice_that_gains_nothing_is_not_given() -> None:
    """If copying is as slow as storage, a cache is no help, and both are named."""
    supplies: Supplies = {"bandwidth": Supply(100e6, ""), "copy": Supply(101e6, "")}
    advice = told(
        supplies, Demand(bytes=1e3, copied_bytes=1e3), DataProfile(total_bytes=9, memory_bytes=99)
    )
    assert "a cache" not in advice
    assert "would help until" not in advice
    assert "storage bandwidth and copying memory have nearly the same ceiling" in advice


def test_advice_on_small_files_names_shards() -> None:
    """If each sample is a file, shards take openings and small reads out."""
    supplies: Supplies = {
        "iops": Supply(1000, ""),
        "metadata": Supply(1500, ""),
        "bandwidth": Supply(500e6, ""),
    }
    demand = Demand(bytes=100e3, reads=1, opens=1)
    own = DataProfile(total_bytes=1 << 40, memory_bytes=1 << 30, own_files=True)
    assert "shards instead of a file for each sample" in told(supplies, demand, own)
    assert "5.0x, where storage bandwidth binds" in told(supplies, demand, own)
    packed = DataProfile(total_bytes=1 << 40, memory_bytes=1 << 30)
    assert "larger reads (shuffle='blocked'" in told(supplies, demand, packed)


def test_compute_that_binds_needs_no_faster_loader() -> None:
    """The advice tells how much faster data could come."""
    supplies: Supplies = {"compute": computing_supply(1.0, 100), "bandwidth": Supply(1e9, "")}
    advice = told(supplies, Demand(bytes=1e6))
    assert "data could come 10.0x as fast" in advice
    assert "only" not in told({"compute": computing_supply(1.0, 100)}, Demand())


@pytest.mark.parametrize("resource", RESOURCES)
def test_every_resource_has_advice(resource: Resource) -> None:
    """Whichever binds: a sentence that names it, and one more that says what to do."""
    supplies: Supplies = {name: Supply(1e6, "") for name in RESOURCES}
    supplies[resource] = Supply(1e5, "")
    demand = Demand(bytes=1, reads=1, opens=1, copied_bytes=1)
    roofline = estimate_roofline(supplies, demand, data=DataProfile(total_bytes=1, memory_bytes=9))
    assert roofline.bound == resource
    assert len(roofline.advice) >= 2
    assert "10.0x" in roofline.advice[0]


# -- what a run says -------------------------------------------------------------------------------

STORAGE: Supplies = {"bandwidth": Supply(100e6, "measured"), "iops": Supply(5000, "measured")}


def judge(waited_s: float, supplies: Supplies, **used: float) -> Roofline:
    """A run of 1000 samples in 10 s, which used so much of each resource in all."""
    counted = RunCounts(seconds=10.0, samples=1000, waited_s=waited_s)
    return judge_run(counted, Demand(**used).scaled(1 / 1000), supplies)


def test_who_does_not_wait_is_bound_by_compute() -> None:
    """Whatever supplies say: they can be wrong about a run that data kept up with."""
    slow: Supplies = {"bandwidth": Supply(1e6, "measured cold")}
    roofline = judge(0.1, slow, bytes=100e6)
    assert (roofline.bound, roofline.samples_per_s, roofline.measured) == ("compute", 100.0, 100.0)
    assert "the run reached more" in roofline.ceilings[1].how


def test_who_waits_for_storage_is_told_which_of_it() -> None:
    """The resource of which the largest part is used binds."""
    roofline = judge(6.0, STORAGE, bytes=990e6, reads=1000)
    assert roofline.bound == "bandwidth"
    compute = next(ceiling for ceiling in roofline.ceilings if ceiling.resource == "compute")
    assert compute.samples_per_s == pytest.approx(1000 / 4.0)
    roofline = judge(6.0, STORAGE, bytes=100e6, reads=49_000)
    assert roofline.bound == "iops"


def test_a_wait_that_nothing_explains_is_not_explained_away() -> None:
    """The nearest is named, and that it alone allows much more."""
    roofline = judge(9.0, STORAGE, bytes=10e6, reads=100)
    assert roofline.bound == "bandwidth"
    assert "something that was not measured" in roofline.ceilings[0].how
    with pytest.raises(UsageError, match="90%.*no supply is known"):
        judge(9.0, {"compute": Supply(1.0, "")})


@given(
    supplied,
    st.floats(0, 10),
    st.floats(0, 1e12),
    st.floats(0, 1e6),
    st.data(),
    st.floats(1, 1e6),
)
def test_raising_what_does_not_bind_does_not_change_a_verdict(
    supplies: Supplies,
    waited_s: float,
    read_bytes: float,
    reads: float,
    draw: st.DataObject,
    factor: float,
) -> None:
    """And what binds never allows more than was measured, nor anything else less."""
    try:
        roofline = judge(waited_s, supplies, bytes=read_bytes, reads=reads)
    except UsageError:
        assert waited_s > 0.5
        return
    assert roofline.samples_per_s == roofline.measured == 100.0
    assert len({ceiling.resource for ceiling in roofline.ceilings}) == len(roofline.ceilings)
    assert roofline.headroom >= 1
    assert (roofline.bound == "compute") == (waited_s <= 0.5)
    others = [resource for resource in supplies if resource != roofline.bound]
    if others:
        more = raised(supplies, draw.draw(st.sampled_from(others)), factor)
        after = judge(waited_s, more, bytes=read_bytes, reads=reads)
        assert after.bound == roofline.bound


# -- what cannot be --------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan])
def test_a_supply_is_above_nothing(rate: float) -> None:
    """No resource gives nothing: it would be no resource."""
    with pytest.raises(UsageError, match="give more than 0"):
        Supply(rate, "x")


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_a_demand_is_a_number(value: float) -> None:
    """Named, with its value."""
    with pytest.raises(UsageError, match=r"Demand\.reads"):
        Demand(reads=value)


def test_wrong_use_is_said() -> None:
    """Unknown resources, nothing to compare, no time, no samples."""
    with pytest.raises(UsageError, match="no resource 'disk'"):
        estimate_roofline({"disk": Supply(1, "")}, Demand())  # type: ignore[dict-item]
    with pytest.raises(UsageError, match="no supply"):
        estimate_roofline({"bandwidth": Supply(1, "")}, Demand())
    with pytest.raises(UsageError, match="a step takes 0"):
        computing_supply(0, 1)
    with pytest.raises(UsageError, match="staging takes 0"):
        staging_supply(10, 0, 1)
    with pytest.raises(UsageError, match="nothing to judge"):
        RunCounts(seconds=1, samples=0, waited_s=0)
    with pytest.raises(UsageError, match="waited 2 s of 1"):
        RunCounts(seconds=1, samples=1, waited_s=2)
