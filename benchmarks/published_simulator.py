"""Run times of the published simulator, and the figures printed of it: data.

The seed is 42, with fresh data for each policy. In s2-15 samples and capacities are a fifteenth of
those of s2, and so are run times, within a percent.
"""

from __future__ import annotations

from typing import NamedTuple


class PublishedRow(NamedTuple):
    """Published figures of one policy.

    run_s:      run time of the published program.
    setup_s:    part of it before the first step.
    logged:     its reads of staging, storage, local and other nodes.
    printed_s:  the thesis's figure.
    """

    run_s: float
    setup_s: float
    logged: tuple[int, int, int, int]
    printed_s: float


# fmt: off
ROWS = {
    "s1": {
        "naive":
            PublishedRow(27.880995127567974, 0.0, (0, 100000, 0, 0), 27.78),
        "staging":
            PublishedRow(10.286017715453724, 0.0, (91266, 100000, 0, 0), 10.24),
        "deepio":
            PublishedRow(8.445991307628555, 1.1110784182411646, (100000, 0, 24955, 75045), 8.41),
        "deepio_opportunistic":
            PublishedRow(8.414666479986405, 1.1110784182411646, (100000, 0, 50183, 49817), 8.4),
        "parallel_staging":
            PublishedRow(10.139298941384494, 2.8235580198318333, (100000, 0, 100000, 0), 10.11),
        "lbann_dynamic":
            PublishedRow(7.718027995985746, 0.0, (98447, 4, 32417, 67579), 7.71),
        "lbann_preloading":
            PublishedRow(8.445991307628555, 1.1110784182411646, (100000, 0, 24955, 75045), 8.41),
        "locality_aware":
            PublishedRow(8.445991307628555, 1.1110784182411646, (100000, 0, 24955, 75045), 8.41),
        "nopfs":
            PublishedRow(7.807088446631754, 0.0, (97944, 34392, 64939, 669), 7.78),
        "lower_bound":
            PublishedRow(7.334912889387344, 0.0, (200000, 0, 0, 0), 7.3),
    },
    "s2-15": {
        "naive":
            PublishedRow(1010.376129357102, 0.0, (0, 100000, 0, 0), 15130.54),
        "staging":
            PublishedRow(332.07681015838125, 0.0, (89588, 100000, 0, 0), 4982.27),
        "deepio":
            PublishedRow(296.21485940920354, 40.62085390624933, (100000, 0, 24955, 75045), 4433.27),
        "deepio_opportunistic":
            PublishedRow(295.961452123752, 40.62085390624933, (100000, 0, 50133, 49867), 4432.9),
        "parallel_staging":
            PublishedRow(332.1464588689146, 76.63636396651225, (100000, 0, 100000, 0), 4972.65),
        "lbann_dynamic":
            PublishedRow(270.7069780045165, 0.0, (96426, 4, 32417, 67579), 4051.12),
        "lbann_preloading":
            PublishedRow(296.21485940920354, 40.62085390624933, (100000, 0, 24955, 75045), 4433.27),
        "locality_aware":
            PublishedRow(296.21485940920354, 40.62085390624933, (100000, 0, 24955, 75045), 4433.27),
        "nopfs":
            PublishedRow(258.03576987902875, 0.0, (99557, 4287, 95703, 10), 3836.12),
        "lower_bound":
            PublishedRow(255.5940055029563, 0.0, (200000, 0, 0, 0), 3825.66),
    },
}
# fmt: on
"""Figures by scenario and policy; those printed beside s2-15 are of s2."""
