'''Pages made from stored tables; they compute no science.

`pages/` says what each page shows: panels with a title, a caption, figures and tables. Most are declared
(`panel.Declared`); a function that gives a list of panels does as well. Beside it lie what reads folders (`load.py`,
`frames.py` and others), the sentences on top (`lead.py`), marks in the look of a page (`figures.py`), panels and tables
(`panel.py`) and HTML (`html_page.py`).

How to add a figure to the page of a run: declare a panel in a file of `pages/`, and enter it in `SECTIONS` of
`pages/run.py`. All of a new file `pages/uploads.py`, for example:

    """Panel on uploads: how much the clients send in a round."""

    from sfl_sim.report import figures
    from sfl_sim.report.frames import Frames
    from sfl_sim.report.panel import Declared
    from sfl_sim.report.results import of_each


    def sent_up(frames: Frames):
        """Megabytes that the clients send in each round, a line for each variant: medians over seeds."""
        sent = frames.rounds.assign(sent_mb=frames.rounds["bytes_up"] / 1e6)
        of = of_each(sent, frames.variants)
        figure = figures.curves(of, "round", "sent_mb", "%{y:.3~g} MB in round %{x}", share=False)
        figure.update_xaxes(figures.round_axis(frames.rounds["round"].max()))
        return figure.update_yaxes(title="sent up (MB)", rangemode="tozero")


    upload_panels = Declared(
        "Uploads",
        "What all clients together send to the server ({bands}).",
        {"Bytes sent up in a round": sent_up},
        when=lambda frames: frames.rounds["bytes_up"].any(),
        words=lambda frames: {"bands": figures.over_seeds(frames.n_seeds)},
    )

In `SECTIONS`, the line `"Uploads": PageSection(uploads.upload_panels),` stands where the section shall stand, with
`trained=True` if only training gives the numbers, and `folded=True` if a reader shall open it, as all sections below
"Where the time goes". Legend, layout, escaping and `--export` follow by themselves. `Frames` holds the tables of the
run folders (docs/output.md), and `display` writes numbers with units. A figure is drawn when it is looked at: a test of
titles, captions and tables waits for none. With a lambda for a figure, mypy wants `: Declared[Frames]`.

A figure of the round that is shown in detail (`details=True`) is made from `one_round.OneRound`, which has a view of
each variant's round: `ops`, `training`, `duration_s`, with times from the round's start. What a figure counts is a
function in `sfl_sim/metrics/`, with a test of its own; a panel only draws. To look at a page as on a phone, put it in
an `<iframe width="390">`: windows of a headless browser are never as narrow.
'''

PAGES = ("report.html", "serving.html", "whatif.html")
"""Pages of a run, a serving and a what-if."""
