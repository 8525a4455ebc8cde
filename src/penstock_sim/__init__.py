"""The simulator: run times of policies of caching and prefetching, on a described cluster.

    scenario = penstock_sim.load_scenario("s1")  # or a path; see list_scenarios()
    result = penstock_sim.simulate(scenario, "penstock")

There are three models. In "corrected" nodes divide shared bandwidth; "parity" is the published
simulator of clairvoyant prefetching with its faults; "events" runs the library's own session and
cache, event by event. docs/simulator/models.md states them.

A `Scenario` describes cluster, data and training; a `Result` holds times and bytes by epoch.
`sweep` varies one key, `sizing` finds the cheapest cluster in closed form, `calibrate` makes a
scenario of a recorded run, and `report` renders the pages. The folder must not read data sets,
touch devices or use a loader: it uses `order` and `plan` as pure functions and state machines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.lazy_exports import hand_out

if TYPE_CHECKING:
    from . import calibrate as calibrate
    from . import fluid_model as fluid_model
    from . import parity as parity
    from . import record as record
    from . import report as report
    from . import sizing as sizing
    from . import sweep as sweep
    from .closed_forms import FORM as FORM
    from .importance import Value as Value
    from .scenario import POLICIES as POLICIES
    from .scenario import SAMPLED as SAMPLED
    from .scenario import SOURCES as SOURCES
    from .scenario import Policy as Policy
    from .scenario import Result as Result
    from .scenario import Scenario as Scenario
    from .scenario import list_scenarios as list_scenarios
    from .scenario import load_scenario as load_scenario
    from .scenario import parse_mapping as parse_mapping
    from .scenario import parse_scenario as parse_scenario
    from .sizing import Prices as Prices
    from .sizing import Range as Range
    from .sweep import KEYS as KEYS
    from .sweep import Model as Model
    from .sweep import data_mb as data_mb
    from .sweep import simulate as simulate
else:
    __all__, __getattr__ = hand_out(
        __name__,
        {
            "calibrate": "calibrate",
            "closed_forms": "FORM",
            "fluid_model": "fluid_model",
            "importance": "Value",
            "parity": "parity",
            "record": "record",
            "report": "report",
            "scenario": (
                "POLICIES Policy Result SAMPLED SOURCES Scenario list_scenarios load_scenario "
                "parse_mapping parse_scenario"
            ),
            "sizing": "Prices Range sizing",
            "sweep": "KEYS Model data_mb simulate sweep",
        },
    )
