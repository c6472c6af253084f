"""What goes wrong becomes one line on stderr and an exit code."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from spec2seq.errors import Spec2SeqError

if TYPE_CHECKING:
    from collections.abc import Callable


def run_main(main: Callable[[], None]) -> None:
    """Run a script. A mistake that the user can mend is told in a line, and so is a warning."""
    name = Path(sys.argv[0]).name
    warnings.showwarning = lambda message, *_: print(f"{name}: warning: {message}", file=sys.stderr)
    try:
        main()
    except Spec2SeqError as error:
        print(f"{name}: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        print(f"{name}: error: {error.strerror or error}: {error.filename or ''}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print(f"{name}: interrupted; the same command goes on", file=sys.stderr)
        sys.exit(130)
