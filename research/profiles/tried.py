"""Errors of the fit of `fit_phones.py` and of three changes to it, on what each fit has left out.

    python -m research.profiles.tried

The rule was written down before the first of these fits. The six networks that `parts.py` leaves out are in no number
here: neither fitted nor judged, at any size, in onnxruntime, torch and the parts.

Ideas:

1. Weights of 3x3 convolutions (stride 1, dilation 1, one group), which Winograd's transform makes 16/9 to 64/9 times as
   many: `all x4`, counted four times in all runtimes (36/9); `ncnn x4` and `ncnn x7.1`, counted so in ncnn alone, and
   by the square root of it where `phones` predicts; `own price`, a tenth price.
2. Weights of the fit: of parts (`OF_PARTS`: 0.12, 0.25, 0.5), and with which other runtimes draw (`PULL`: 0.03, 0.1,
   0.3); one pair for all runtimes.
3. In torch and PyTorch Mobile, which run batch norms and ReLUs by themselves, the elements that these read and write
   move as others do (`unfused`), without a further price.

Order: 1, then 3 with what is kept of 1, then 2 with what is kept of both.

Judged, for each profile (`phones` in all runtimes, the others in their own), by means of |ln(predicted / measured)|:

- whole: whole networks at 224 pixels from the latency of MobileNet-V2, each left out with its family; each network of a
  source counts once, and each source;
- share: shares that parts of `FITTED` take of their network, each network left out with all its parts and whole sizes;
- networks: whole networks of `FITTED` against the median of the others at the same side and mini-batch, left out alike.

A profile's score is the mean of those that it has; the score of a variant is the mean over profiles.

Kept: if the score falls by 3 % (5 % where the program needs a further column: 1 but for `all x4`, and 3), no profile's
score rises by more than 5 %, and no profile's median error of whole networks rises by more than 0.02. Of several
variants that pass, the one with the lowest score.
"""
