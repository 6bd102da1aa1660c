"""Entry point: parses arguments, runs a command, turns faults into messages and exit codes.

Exit codes: 0 ok; 1 a check failed; 2 bad usage or a bad spec; 3 internal error; 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from qlagen.cli.parser import make_parser
from qlagen.cli.status import INTERNAL, INTERRUPTED, OK, status_of
from qlagen.errors import QlagenError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; argparse itself exits with 2 on bad usage."""
    options = make_parser().parse_args(arguments)
    # Before NumPy is imported: its many small products are an order of magnitude slower in threads on a busy machine.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        # Only the command's own module is imported: `qlagen --help` needs no stage of the compiler.
        command = importlib.import_module(f"qlagen.cli.{options.module}")
        status: int = command.run(options)
        sys.stdout.flush()
    except QlagenError as fault:
        print(fault.render(), file=sys.stderr)
        return status_of(fault)
    except BrokenPipeError:
        # The reader has gone (`| head`): nothing is wrong, but Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as fault:
        traceback.print_exc()
        print(
            f"internal error: {type(fault).__name__}: {fault}; please report it with the lines above", file=sys.stderr
        )
        return INTERNAL
    return status
