"""The loggers of Strata: a message is one line, whatever a worker, a file or another program said in it, and the lines
of a traceback are indented."""

import logging

from strata.texts import printable, printable_lines


def get_logger(name: str) -> logging.Logger:
    """The logger of this name, whose messages are escaped before any handler sees them."""
    logger = logging.getLogger(name)
    logger.addFilter(_escape)  # a second time is none
    return logger


def _escape(record: logging.LogRecord) -> bool:
    """A message that is printable stays a template with arguments, as programs that read logs have it."""
    try:
        message = record.getMessage()
    except Exception:  # noqa: BLE001 - the handler that formats it says what is wrong
        return True
    if not message.isprintable():
        record.msg, record.args = printable(message), ()
    if record.exc_info and not record.exc_text:
        record.exc_text = printable_lines(logging.Formatter().formatException(record.exc_info))
    return True
