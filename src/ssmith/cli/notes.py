"""What the library says of itself while it works, as notes on the console."""

from __future__ import annotations

import logging

from rich.console import Console


class _ConsoleHandler(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        self.console.print(f"note: {record.getMessage()}", style="yellow")


def show_log_messages(console: Console) -> None:
    """Prints what the library says of itself (kernels that compile) as notes, on the newest console."""
    logger = logging.getLogger("ssmith")
    logger.handlers = [h for h in logger.handlers if not isinstance(h, _ConsoleHandler)]
    logger.addHandler(_ConsoleHandler(console))
    logger.setLevel(logging.INFO)
