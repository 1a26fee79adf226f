"""Which row of a circular buffer holds whose input: numbers alone, the rows themselves are in `device_pool`."""


class Ring:
    """Gives out rows in the order in which they are asked for, so that who came together lies together (Ebird, V-A).

    Rows still held are passed over. One thread at a time takes; any may give back, each what it was given.
    """

    def __init__(self, rows: int) -> None:
        self._held = [False] * rows
        self._next = 0

    def take(self) -> int:
        """Return the next row that nobody holds; raises `IndexError` if all are held."""
        rows = len(self._held)
        for step in range(rows):
            row = (self._next + step) % rows
            if not self._held[row]:
                self._held[row] = True
                self._next = (row + 1) % rows
                return row
        raise IndexError(f"all {rows} rows are held: a ring needs as many as there are slots")

    def give_back(self, row: int) -> None:
        """Let others have this row."""
        self._held[row] = False
