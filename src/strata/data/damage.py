"""What is wrong with a file, on its way to an error that says where."""


class Damage(Exception):
    """Why a file, or a block of it, cannot be read: the end of a sentence. Users see DataDamaged."""
