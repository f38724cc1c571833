"""Goals: what a network has to predict of a sample. Data, losses, evaluation and scores each know what theirs needs."""

from enum import StrEnum

NO_LABEL, NO_TOKEN = 255, -100
"""Stand for a pixel without a label, as in PASCAL VOC, and for a token that is not predicted, as in torch: such ones
are neither trained on nor counted."""


class Goal(StrEnum):
    """What is predicted of each sample, with its targets (N, ...) in memory; the values are words for messages."""

    LABEL = "one label"
    """Labels (N,) int64; a network gives logits (n, L)."""
    TOKENS = "the next tokens"
    """Samples hold them; a network gives logits (n, T, V)."""
    LABEL_SET = "a set of labels"
    """Flags (N, L) uint8, 1 for each label that a sample has; a network gives logits (n, L)."""
    NUMBERS = "numbers"
    """Numbers (N, K) float32; a network gives (n, K)."""
    PIXELS = "a label for each pixel"
    """Masks (N, H, W) uint8, 255 where there is no label; a network gives logits (n, L, H, W)."""

    @property
    def scores_labels(self) -> bool:
        """True if answers are right or wrong for each sample or token, so that accuracies are by label."""
        return self in (Goal.LABEL, Goal.TOKENS)
