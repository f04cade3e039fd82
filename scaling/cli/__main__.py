"""`python -m scaling.cli`: the command, where its script is not on the path."""

from __future__ import annotations

import sys

from scaling.cli.main import main

sys.exit(main())
