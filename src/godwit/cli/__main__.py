"""`python -m godwit.cli`: the same as `godwit`."""

import sys

from godwit.cli import main

sys.exit(main())
