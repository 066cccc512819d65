"""The `strata` command: one file per command, imported when it is used.

What it needs beyond Strata itself is in the extra `coordinator`, and where that is missing it says so.
"""

import sys

EXTRA = ("fastapi", "grpc_health", "grpc_reflection", "pydantic", "rich", "starlette", "typer", "uvicorn")
"""The modules that the extra brings."""


def main() -> None:
    """Run the command line."""
    try:
        from strata.cli import app

        app.main()
    except ModuleNotFoundError as missing:
        name = (missing.name or "").partition(".")[0]
        if name not in EXTRA:
            raise
        sys.stderr.write(
            f"error: the strata command and the coordinator need {name}, which is not installed: "
            "pip install 'strata-runtime[coordinator]'\n"
        )
        sys.exit(2)


__all__ = ["main"]
