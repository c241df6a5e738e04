"""What holds for every test."""

import os

# On a busy machine OpenMP's threads spin away each other's time slices: a decode then takes seconds.
# Read once, when llama.cpp is loaded, here and in the workers.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
