def benchmark_in_terminal(folder):
    return "x"


def write_benchmark(folder, out):
    return out
