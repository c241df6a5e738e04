"""Where the engine meets the KV store: what to restore for a prompt, what to save of a sequence, and when.

    intake thread   plan = checkpoints.find(tokens, ...)        looks up, starts the reads
    engine thread   n = checkpoints.restore(plan, seq)          0 = miss, the sequence is left empty
                    checkpoints.stops(n_prompt, boundaries)     where prefill must end a chunk
                    checkpoints.after_step(sequence)            copies what became complete
                    key = checkpoints.finish(sequence, reason)  the rest; the finish key
    writer thread   slices, hashes and writes what was copied

``open_checkpoints`` makes them. A ``Checkpoints`` itself is the null store of a model whose cache is off.
"""

from barrel_inference.engine.checkpoints.checkpoints import Checkpoints, StoredCheckpoints
from barrel_inference.engine.checkpoints.opening import open_checkpoints
from barrel_inference.engine.checkpoints.restoring import StoredPlan

__all__ = ["Checkpoints", "StoredCheckpoints", "StoredPlan", "open_checkpoints"]
