"""What a study is whole without may fail, but not silently."""

import pytest

from sfl_sim.errors import ScenarioError
from sfl_sim.runs.news import optional


def test_what_has_nothing_to_show_is_left_out_and_what_cannot_be_written_is_not():
    told = []
    with optional("a page", told.append):
        raise ScenarioError("has nothing to report", key="report")
    assert [news.problem for news in told] == ["a page is left out: report: has nothing to report"]
    with pytest.raises(ScenarioError, match="cannot be written"), optional("a page", told.append):
        raise ScenarioError("cannot be written") from OSError("disk full")
