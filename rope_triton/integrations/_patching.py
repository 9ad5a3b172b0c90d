"""Functions of other libraries, replaced until that is undone."""

import contextlib
import functools
from collections.abc import Callable, Mapping
from types import ModuleType


class Patch(contextlib.ExitStack):
    """Functions of modules that are replaced until ``close()``, or the end of a ``with`` block.

    A function stays replaced until the last patch of it is closed, in whatever order. What another
    library puts in its place meanwhile is left there; if it calls the replacement, that calls the
    original function from then on.
    """

    def __init__(self, functions: Mapping[tuple[ModuleType, str], Callable]):
        super().__init__()
        self.replaced = [f"{module.__name__}.{name}" for module, name in functions]
        for (module, name), function in functions.items():
            replacement = getattr(module, name)
            if not isinstance(replacement, Replacement):
                replacement = Replacement(replacement, function)
                setattr(module, name, replacement)
            replacement.patches += 1
            self.callback(_release, replacement, module, name)

    def __repr__(self):
        return f"<{type(self).__name__} of {', '.join(self.replaced) or 'nothing'}>"


class Replacement:
    """Calls ``function`` while there is a patch, and then ``original`` for who still has it."""

    def __init__(self, original: Callable, function: Callable):
        functools.update_wrapper(self, original)
        self.original, self.function, self.patches = original, function, 0

    def __call__(self, *args, **kwargs):
        return (self.function if self.patches else self.original)(*args, **kwargs)


def _release(replacement: Replacement, module: ModuleType, name: str) -> None:
    replacement.patches -= 1
    if not replacement.patches and getattr(module, name, None) is replacement:
        setattr(module, name, replacement.original)
