"""What a checkpoint must know of each package that has arrays: how to look at one, copy it out, and make one.

None of these packages is imported before the caller has: a value of torch's cannot exist without torch.
"""

from strata.checkpoint.frameworks.base import COPIED, Block, Copying, Described, Framework, Layout
from strata.checkpoint.frameworks.find import framework_named, framework_of, know, known_framework

__all__ = [
    "COPIED",
    "Block",
    "Copying",
    "Described",
    "Framework",
    "Layout",
    "framework_named",
    "framework_of",
    "know",
    "known_framework",
]
