"""`python -m strata` is `strata`."""

from strata.cli import main

if __name__ == "__main__":
    main()
