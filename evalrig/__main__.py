"""`python -m evalrig`."""

import sys

from evalrig.cli import main

sys.exit(main())
