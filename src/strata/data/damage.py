"""What is wrong with a file, on its way to an error that says where."""


class Damage(Exception):
    """Why a file, or a block of it, cannot be read: the end of a sentence. Users see DataDamaged."""


class Misfit(Exception):
    """Why one row of a block does not fit the columns of its dataset: the end of a sentence about a sample. Users see
    DataMismatch. `row` is counted from the first of the block, or of the file where that is indexed."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(why)
        self.row = row
