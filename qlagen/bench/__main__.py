import sys

from qlagen.bench.cli import main

sys.exit(main())
