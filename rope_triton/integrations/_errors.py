"""Errors of a rotation, in the words of the library whose function was called."""

import re


def renamed(error: Exception, names: dict[str, str]) -> Exception:
    """The error with other names of arguments, where ``names`` has them by those of a rotation.

    Without the advice to pass ``fused=False``, an argument that these functions do not have.
    """
    text = re.sub(r": pass fused=False$|pass fused=False, or ", "", str(error))
    for name, other in names.items():
        text = re.sub(rf"\b{name}\b", other, text)
    return type(error)(text)
