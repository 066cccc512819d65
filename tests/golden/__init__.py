"""Files that released versions of Strata wrote, and tests that today's version still reads them.

`0.1.0/` and its siblings are never changed: `make.py` writes the folder of a new release, once.
"""
