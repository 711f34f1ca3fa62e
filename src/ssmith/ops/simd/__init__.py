"""What Numba CPU kernels stand on: vectors of float32 lanes, one compilation per machine, a thread pool."""
