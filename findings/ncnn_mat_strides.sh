#!/bin/sh
# ncnn.Mat takes the shape of a NumPy array and not its strides: numbers of a transposed array come in another order.
#
# Expected: ncnn.Mat(array) holds the numbers of `array`, as np.array(array) does, or refuses an array that does not lie
#   in the order of its axes.
# Seen: shape and sum are right, and the numbers stand where they lie in memory. A sample that torch keeps in
#   channels_last, which is what its convolutions give on a CPU once the weights are in that format, goes so into the
#   network with its channels mixed, and the outputs look as outputs do. np.ascontiguousarray, or .contiguous() of the
#   tensor, mends it. MNN's const takes the same array in the right order.
# Source: python/src/main.cpp of ncnn, the constructor of Mat from a buffer: it reads info.shape and info.ptr, and no
#   info.strides.
# Versions: ncnn 1.0.20261020, MNN 3.6.1, NumPy 2.4.6, on a CPU.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet ncnn==1.0.20261020 MNN==3.6.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'END'
from importlib.metadata import version

import MNN.expr
import ncnn
import numpy as np

print("ncnn", version("ncnn"), "MNN", version("MNN"), "NumPy", np.__version__)
plain = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
channels_last = np.ascontiguousarray(plain.transpose(1, 2, 0)).transpose(2, 0, 1)
assert np.array_equal(plain, channels_last)
by_ncnn = np.array(ncnn.Mat(channels_last))
by_mnn = np.array(MNN.expr.const(channels_last[None], [1, 2, 3, 4], MNN.expr.NCHW).read())[0]
print("first row of the array:", channels_last[0, 0])
print("of ncnn.Mat of it:", by_ncnn[0, 0], "shape", by_ncnn.shape, "sum", by_ncnn.sum())
print("of MNN's const of it:", by_mnn[0, 0])
assert by_ncnn.shape == plain.shape and by_ncnn.sum() == plain.sum()
assert np.array_equal(by_ncnn.ravel(), plain.transpose(1, 2, 0).ravel())
assert np.array_equal(by_mnn, plain)
assert np.array_equal(np.array(ncnn.Mat(np.ascontiguousarray(channels_last))), plain)
END
