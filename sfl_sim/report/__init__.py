'''Pages made from stored tables; they compute no science.

How to add a figure to the page of a run: write a function that returns its panel, in a file of this package, and enter
it in the list of `page._sections`. All of a new file `uploads.py`, for example:

    """Panel on uploads: how much the clients send in a round."""

    from sfl_sim.report import figures
    from sfl_sim.report.frames import Frames
    from sfl_sim.report.panel import Panel


    def upload_panels(frames: Frames) -> list[Panel]:
        """List the panel on uploads, if anything was sent."""
        if not frames.rounds["bytes_up"].any():
            return []
        figure = figures.canvas(height_px=280)
        for variant in frames.variants:
            rows = frames.rounds[frames.rounds["variant"] == variant.label]
            sent_mb = rows.groupby("round")["bytes_up"].median() / 1e6
            figures.lines(figure, variant, sent_mb.index, sent_mb, "%{y:.3~g} MB in round %{x}")
        figure.update_xaxes(figures.round_axis(frames.rounds["round"].max()))
        figure.update_yaxes(title="sent up (MB)", rangemode="tozero")
        caption = "What all clients together send to the server (medians over seeds)."
        return [Panel("Uploads", caption, [("Bytes sent up in a round", figure)])]

In `page._sections`, the line `"Uploads": lambda: upload_panels(frames),` stands where the section shall stand. Legend,
layout, escaping and `--export` follow by themselves. `Frames` holds the tables of the run folders (docs/output.md),
`figures` draws marks in the look of the page, `display` writes numbers with units, and a `Panel` takes tables as well
(`table.py`).

A figure of the round that is shown takes `views` beside `frames` (`round_view.RoundView`: `ops`, `training`,
`duration_s`, times from the round's start). What a figure counts is a function in `sfl_sim/metrics/`, with a test of
its own; a panel only draws. Two lists in `tests/report/test_report_page.py` name the sections: `ALWAYS` (or `TRAINED`),
and, if the caption says which variants are drawn, that of `test_who_is_left_out_of_the_details_is_told`. To look at a
page as on a phone, put it in an `<iframe width="390">`: windows of a headless browser are never as narrow.
'''
