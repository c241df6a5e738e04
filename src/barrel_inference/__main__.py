"""``python -m barrel_inference``: the command line."""

import sys

from barrel_inference.cli.main import main

sys.exit(main())
