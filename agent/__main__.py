"""`python -m agent` is `ir-agent`; nothing else."""

import sys

from agent.control import main

sys.exit(main())
