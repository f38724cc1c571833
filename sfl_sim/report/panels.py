"""The sections of a run's page in reading order: what was learned, what it cost, one round in detail, the world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfl_sim.report.exits import exit_panels
from sfl_sim.report.fleet import fleet_panel
from sfl_sim.report.frontier import frontier_panels
from sfl_sim.report.gantt import gantt_panel
from sfl_sim.report.labels import label_panels
from sfl_sim.report.layers import cut_panels
from sfl_sim.report.learning import accuracy_panels
from sfl_sim.report.participation import participation_panels
from sfl_sim.report.preview import holdings_panels
from sfl_sim.report.queueing import queue_panels
from sfl_sim.report.replay import replay_panels
from sfl_sim.report.round_time import breakdown_panel, path_panel
from sfl_sim.report.round_view import round_views
from sfl_sim.report.staleness import staleness_panels

if TYPE_CHECKING:
    from sfl_sim.report.frames import Frames
    from sfl_sim.report.html_page import Panel


def panels(frames: Frames) -> list[Panel]:
    """All sections that the runs have data for."""
    views = round_views(frames)
    return [
        *learned_panels(frames),
        breakdown_panel(frames),
        *participation_panels(frames),
        *staleness_panels(frames),
        *replay_panels(frames),
        *queue_panels(frames, views),
        gantt_panel(frames, views),
        path_panel(frames, views),
        *cut_panels(frames),
        *holdings_panels(frames),
        fleet_panel(frames),
    ]


def learned_panels(frames: Frames) -> list[Panel]:
    """Accuracy, forgetting, and what they cost; nothing where nothing was trained."""
    if frames.timing_only:
        return []
    return [*accuracy_panels(frames), *exit_panels(frames), *label_panels(frames), *frontier_panels(frames)]
