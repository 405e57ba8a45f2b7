"""`python -m godwit.demo`."""

import sys

from godwit.demo import main

sys.exit(main())
