"""Codes as the bytes that would cross a link, to compare what codecs declare with what they need."""

import math

import numpy as np

from sfl_sim.rng import stream
from sfl_sim.training.codecs import Int, SplitFC, TopK


def raw(tensor):
    return tensor.contiguous().numpy(force=True).tobytes() if tensor.dtype.itemsize != 2 else bytes(tensor.nbytes)


def in_bits(numbers, bits):
    """Pack whole numbers of so many bits one after another."""
    one_by_one = (np.asarray(numbers, dtype=np.int64).reshape(-1, 1) >> np.arange(bits)) & 1
    return np.packbits(one_by_one.astype(np.uint8)).tobytes()


def bitmap(places, numel):
    marked = np.zeros(numel, dtype=np.uint8)
    marked[places] = 1
    return np.packbits(marked).tobytes()


def pack(codec, code, shape):
    """The bytes of the code of a tensor (n, ...)."""
    numel = math.prod(shape[1:])
    if isinstance(codec, Int):
        from_zero, s, z = code
        return in_bits((from_zero + z).numpy(), codec.bits) + raw(s.float()) + raw(z.float())
    if isinstance(codec, TopK):
        values, places = code
        if values.shape[1] == numel:
            return raw(values)
        forms = ([bitmap(row, numel), in_bits(row, math.ceil(math.log2(numel)))] for row in places.numpy())
        return raw(values) + b"".join(min(two, key=len) for two in forms)
    if isinstance(codec, SplitFC):
        places, _, *values = code
        columns = shape[0], len(places)
        sent = raw(values[0]) if codec.bits == 32 else pack(codec._inner, values, columns)
        return sent + bitmap(places.numpy(), numel)
    return b"".join(map(raw, code))


def travelling(gradient):
    """The bytes of what comes back of a coded gradient."""
    whole, through = gradient.made_of[0].load(), gradient.message
    back = through.codec.select(whole, through.code(0)) if through else whole
    if gradient.codec is None:
        return raw(back)
    return pack(gradient.codec, gradient.codec.encode(back, stream(*gradient.draw)), back.shape)
