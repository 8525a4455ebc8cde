"""The simulator: what a policy of caching and prefetching takes, on a cluster that is described.

    scenario = penstock.sim.load_scenario("s1")  # or a path; names() lists those that come along
    result = penstock.sim.simulate(scenario, "penstock")

Two models: "corrected", in which bandwidth that is shared is shared, and "parity", the published
simulator of clairvoyant prefetching with its faults. docs/simulator.md states both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..faces import hand_out

if TYPE_CHECKING:
    from . import calibrate as calibrate
    from . import corrected as corrected
    from . import parity as parity
    from . import record as record
    from . import report as report
    from . import sizing as sizing
    from . import sweep as sweep
    from .closed import FORM as FORM
    from .importance import Value as Value
    from .results import SOURCES as SOURCES
    from .results import Result as Result
    from .scenario import POLICIES as POLICIES
    from .scenario import SAMPLED as SAMPLED
    from .scenario import Policy as Policy
    from .scenario import Scenario as Scenario
    from .scenario import list_scenarios as list_scenarios
    from .scenario import load_scenario as load_scenario
    from .scenario import parse_scenario as parse_scenario
    from .simulation import Model as Model
    from .simulation import simulate as simulate
    from .sizing import Prices as Prices
    from .sizing import Range as Range
    from .sweep import KEYS as KEYS
    from .sweep import data_mb as data_mb
else:
    __all__, __getattr__ = hand_out(
        __name__,
        {
            "calibrate": "calibrate",
            "closed": "FORM",
            "corrected": "corrected",
            "importance": "Value",
            "parity": "parity",
            "record": "record",
            "report": "report",
            "results": "Result SOURCES",
            "scenario": "POLICIES Policy SAMPLED Scenario load_scenario list_scenarios parse_scenario",
            "simulation": "Model simulate",
            "sizing": "Prices Range sizing",
            "sweep": "KEYS data_mb sweep",
        },
    )
