"""Which row of a circular buffer holds whose input. Row numbers only; the rows themselves are in `device_pool`."""


class Ring:
    """Gives out rows in order, so that requests that arrive together get contiguous rows (Ebird, V-A).

    Rows still held are skipped. Only one thread at a time may take rows; any thread may give back rows it was given.
    """

    def __init__(self, rows: int) -> None:
        self._held = [False] * rows
        self._next = 0

    def take(self) -> int:
        """Return the next free row. Raises `IndexError` if all are held."""
        rows = len(self._held)
        for step in range(rows):
            row = (self._next + step) % rows
            if not self._held[row]:
                self._held[row] = True
                self._next = (row + 1) % rows
                return row
        raise IndexError(f"all {rows} rows are held: a ring needs as many as there are slots")

    def give_back(self, row: int) -> None:
        """Make a row free again."""
        self._held[row] = False
