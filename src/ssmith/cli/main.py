"""`ssmith VERB ...`: finds the verb, runs it, turns what goes wrong into one message."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from ssmith import __version__
from ssmith.config.schema import nearest

VERBS = {
    "train": "train a model from scratch on text",
    "generate": "write on from a prompt",
    "evaluate": "perplexity and bits per byte of a model on text",
    "verify": "prove every gradient of a model or recipe",
}
USAGE = "usage: ssmith VERB [MODEL] [flags]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb; gives the exit code: 0 done, 1 something the user can mend, 2 wrong usage."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments:
        print(_overview(), file=sys.stderr)
        return 2
    verb, *rest = arguments
    if verb in ("-h", "--help"):
        print(_overview())
        return 0
    if verb == "--version":
        print(f"ssmith {__version__}")
        return 0
    if verb not in VERBS:
        print(f"{USAGE}\nssmith: unknown verb {verb!r}{nearest(verb, VERBS)}", file=sys.stderr)
        return 2
    return _run(verb, rest)


def _run(verb: str, arguments: list[str]) -> int:
    traceback = "--traceback" in arguments
    module = importlib.import_module(f"ssmith.cli.{verb}")
    try:
        return module.run([a for a in arguments if a != "--traceback"])
    except BrokenPipeError:  # whoever read the output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, OSError, MemoryError, RuntimeError) as error:
        if traceback or (isinstance(error, RuntimeError) and not _out_of_memory(error)):
            raise
        print(f"ssmith {verb}: {_message(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        lost = "; no model was saved" if verb == "train" else ""
        print(f"\nssmith {verb}: stopped{lost}", file=sys.stderr)
        return 130


def _out_of_memory(error: BaseException) -> bool:
    """torch says it with a RuntimeError: its OutOfMemoryError on a GPU, a sentence on a CPU."""
    kind = type(error).__name__
    return kind in ("MemoryError", "OutOfMemoryError") or "can't allocate memory" in str(error)


def _message(error: BaseException) -> str:
    if _out_of_memory(error):
        return "out of memory: lower --micro-batch-size or --max-seq-len, or take a smaller model"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.strerror}: {error.filename}"
    return str(error) or type(error).__name__


def _overview() -> str:
    lines = [USAGE, "", "Trains and runs state-space language models.", "", "verbs:"]
    lines += [f"  {name:<10} {text}" for name, text in VERBS.items()]
    lines += ["", "`ssmith VERB --help` says more. A failure is one message; --traceback shows where.", ""]
    return "\n".join(lines).rstrip()


if __name__ == "__main__":
    sys.exit(main())
