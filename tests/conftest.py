"""What holds for every test."""

import os
import signal

from hypothesis import HealthCheck, settings

# On a busy machine OpenMP's threads spin away each other's time slices: a decode then takes seconds.
# Read once, when llama.cpp is loaded, here and in the workers.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# What a developer has configured is no matter of the tests, nor of the processes that they start.
for name in [name for name in os.environ if name.startswith("BARREL_INFERENCE_")]:
    del os.environ[name]
os.environ["BARREL_INFERENCE_CONFIG"] = os.devnull

# Started in the background of a script, a process ignores Ctrl-C, and so do its children; some tests send it to them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A deadline measures the machine; what may not take long has a test of its own.
# The same examples each time, so that a change is what breaks a test; scripts/fuzz_gguf looks for new ones.
settings.register_profile("barrel", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("barrel")
