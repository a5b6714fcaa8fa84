"""``python -m greenroom``: the same as the ``greenroom`` command."""

from __future__ import annotations

import sys

from greenroom.cli import main

if __name__ == "__main__":
    sys.exit(main())
