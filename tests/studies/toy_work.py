"""What processes of the toy study do; imports nothing that takes long."""

import os

WHOLE, LOST = "out of order", 9


def square(items, alone, notes, crashes):
    """Square numbers; those of ``crashes`` end the process. It says where it is if it has to."""
    for index, item in enumerate(items):
        if alone:
            notes.begin(index)
        if item in crashes:
            print(WHOLE, flush=True)
            os._exit(LOST)
        notes.row({"item": item, "square": item**2, "alone": alone})


def silent(items, alone, notes, crashes):
    """Ends without saying where it was."""
    os._exit(LOST)


def together(items, alone, notes, crashes):
    """All rows at the end, as where items take turns; it says where it is."""
    for index, item in enumerate(items):
        notes.begin(index)
        if item in crashes:
            os._exit(LOST)
    for item in items:
        notes.row({"item": item, "square": item**2, "alone": alone})
