"""Colours and names that mean the same on every page."""

from dataclasses import dataclass

from markupsafe import Markup

from sfl_sim.store.columns import PARTS

# Okabe and Ito (2008) without yellow, which is lost on white: strong colours, for variants only.
VARIANT_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("solid", "dash", "dot")
MAX_LOOKS = len(VARIANT_COLOURS) * len(DASHES)
"""Number of variants that can be told apart, and so are drawn."""
MAX_DETAILED = 6
"""Number of variants of which details are drawn."""
SYMBOLS = dict(zip(DASHES, ("circle", "diamond", "square"), strict=True))
GLYPHS = {"circle": "●", "diamond": "◆", "square": "■", "triangle-down": "▼", "triangle-up": "▲", "star": "★"}
"""Plotly's symbols as they look in text."""
# Paul Tol's "light" scheme and a slate: pale fills, for resources only. Warm is waiting, all else is work.
_RESOURCES = (
    ("device", "#77AADD"), ("uplink", "#44BB99"), ("between servers", "#99DDFF"),
    ("waiting in the queue", "#EE8866"),
    ("waiting for assistants", "#EEDD88"), ("server", "#3F4B63"), ("downlink", "#BBCC33"),
    ("straggler wait", "#FFAABB"), ("aggregation", "#D9D9D9"), ("waiting for clients", "#C9A27C"),
)  # fmt: skip
RESOURCE_NAMES = {part: name for part, (name, _) in zip(PARTS, _RESOURCES, strict=True)}
RESOURCE_COLOURS = {part: colour for part, (_, colour) in zip(PARTS, _RESOURCES, strict=True)}
# Paul Tol's "muted" scheme and a brown, as strong as the variants' colours: for labels only.
LABEL_COLOURS = (
    "#332288", "#CC6677", "#DDCC77", "#117733", "#88CCEE", "#882255", "#44AA99", "#999933", "#AA4499", "#A5642E",
)  # fmt: skip
ACCURACY_SCALE = ((0.0, "#FBF3E4"), (0.35, "#B8D3DE"), (0.7, "#4C8DB0"), (1.0, "#123A5C"))
SHARE_SCALE = ((0.0, "#FFFFFF"), (0.001, ACCURACY_SCALE[0][1]), *ACCURACY_SCALE[1:])
"""White is nothing at all; the least share has a tint."""
LOSS_SCALE = tuple((1 - at, colour) for at, colour in reversed(ACCURACY_SCALE))
"""Dark is good, as where accuracy is drawn."""
TURN_SCALE = "Viridis"
INK, MUTED, GRID, ALARM = "#1F2933", "#66727F", "#E6E9ED", "#C0392B"
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif'
DOT = "#F2A33A"
"""Seen on the palest and on the darkest of the accuracies."""


@dataclass(frozen=True)
class Named:
    """Bearer of one name, colour and mark all over the page.

    Attributes:
        label: its name, escaped for pages and for Plotly alike.
        colour, dash: of its lines.
    """

    label: Markup
    colour: str
    dash: str

    @property
    def symbol(self) -> str:
        """Mark in figures; no other of the first `MAX_LOOKS` has this mark in this colour."""
        return SYMBOLS[self.dash]

    @property
    def html(self) -> Markup:
        """The label beside its mark, in tags that both HTML and Plotly know."""
        mark = Markup('<span style="color:{}">{}</span>').format(self.colour, GLYPHS[self.symbol])
        return mark + Markup("\u00a0<b>{}</b>").format(self.label)


def look(index: int) -> dict[str, str]:
    """Colour and dash of the variant with this number: the dash changes when all colours are taken.

    From `MAX_LOOKS` on all variants look alike, and unlike those before.
    """
    turn, colour = divmod(index, len(VARIANT_COLOURS))
    if index >= MAX_LOOKS:
        return {"colour": MUTED, "dash": DASHES[0]}
    return {"colour": VARIANT_COLOURS[colour], "dash": DASHES[turn]}
