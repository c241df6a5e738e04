"""What the compiled llama.cpp can do, as one JSON object on standard output. Run as a program, because the runtime
never loads llama.cpp into its own process."""

from __future__ import annotations

import json
import sys
from typing import Any

from barrel_inference.engine.llama import features


def main() -> None:
    facts: dict[str, Any] = features()
    sys.stdout.write(json.dumps(facts))


if __name__ == "__main__":
    main()
