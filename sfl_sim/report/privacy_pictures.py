"""Pictures of the page on what the cut gives away: samples of clients beside what was reconstructed of them."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from markupsafe import Markup

if TYPE_CHECKING:
    import pandas as pd

    from sfl_sim.report.frames import Variant
    from sfl_sim.report.privacy import PrivacyResults


class Strip(NamedTuple):
    """A row of pictures: what it shows, how well that was drawn, and the pictures side by side, as a data URI."""

    name: Markup
    about: str
    uri: str


class Gallery(NamedTuple):
    """Rows of pictures with a heading, which may be empty."""

    name: Markup
    strips: list[Strip]


def galleries(results: PrivacyResults) -> list[Gallery]:
    """Lay samples of the first seed out in rows: as they are, their mean, and as they were drawn at every cut.

    The former come once for all series with the same samples.
    """
    found: list[Gallery] = []
    shown: list[int] = []
    cuts = results.middle["cut"].to_dict()
    for series in results.all_series if len(results.pictures) else []:
        variants = [v for v in results.frames.variants if results.series[v.label] == series]
        variants.sort(key=lambda variant: cuts[variant.label])
        strips = []
        for variant in variants:
            own = results.pictures.query("variant == @variant.label and seed == @variant.seed")
            for cut in sorted(set(own["cut"]) - {0}):
                rows = own[own["cut"] == cut]
                strips.append(Strip(_name(results, cut), _how_well(results, variant, cut), _strip(rows, "drawn")))
                if shown != rows["sample"].to_list():
                    shown = rows["sample"].to_list()
                    mean = own[(own["cut"] == 0) & (own["attack"] == "mean")]
                    found.append(Gallery(Markup(""), [
                        Strip(Markup("The samples"), "as clients hold them", _strip(rows, "original")),
                        Strip(Markup("The mean image"), "known without any attack", _strip(mean, "drawn")),
                    ]))  # fmt: skip
        found.append(Gallery(series.label if len(results.all_series) > 1 else Markup(""), strips))
    return found


def _name(results: PrivacyResults, cut: int) -> Markup:
    return Markup("Cut after <b>{}</b>").format(Markup(results.layers.get(cut, cut)))


def _how_well(results: PrivacyResults, variant: Variant, cut: int) -> str:
    """Say how alike samples and drawings of the first seed are."""
    rows = results.table.query("variant == @variant.label and seed == @variant.seed and cut == @cut and client == -1")
    values = rows[rows["attack"] == "inversion"].set_index("metric")["value"]
    return f"SSIM {values['ssim']:.2f}, PSNR {values['psnr']:.1f} dB"


def _strip(rows: pd.DataFrame, column: str) -> str:
    """Put the pictures of some rows side by side; gives the data URI of a PNG."""
    from PIL import Image

    images = []
    for pixels, shape in zip(rows[column], rows["shape"], strict=True):
        channels, height, width = shape
        image = np.frombuffer(pixels, dtype=np.uint8).reshape(channels, height, width).transpose(1, 2, 0)
        image = np.broadcast_to(image, (height, width, 3))
        images += [image, np.full((height, max(1, width // 12), 3), 255, dtype=np.uint8)]
    whole = np.concatenate(images[:-1], axis=1)
    file = io.BytesIO()
    Image.fromarray(whole).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
