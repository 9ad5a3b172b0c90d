"""Compile once what two kernels have in common, though the source of one stands elsewhere.

Triton names a kernel by its source, comments and line number included: two versions of a file have
hardly a kernel in common. What its compilers read is the module that it makes of the source. Of two
modules that differ only in the lines that they name, the second gets what was made of the first.
"""

import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path


def reuse() -> None:
    """Let this process do so, by way of Triton's cache: what others put there is found, too."""
    from triton.backends import backends

    for backend in backends.values():
        backend.compiler.add_stages = _reusing(backend.compiler.add_stages)


def _reusing(add: Callable) -> Callable:
    @functools.wraps(add)
    def add_stages(backend, stages: dict, options, *rest) -> None:
        add(backend, stages, options, *rest)
        kernel = _Kernel(dict(stages), (backend.hash(), options.hash()))
        stages.update({name: functools.partial(kernel.stage, name) for name in stages})

    return add_stages


class _Kernel:
    """A kernel on its way through Triton's stages.

    compilers: by the stage's name, in order; each takes what the one before it made, and the
    metadata that it changes. depends: all that they depend on, but the module and the environment.
    """

    def __init__(self, compilers: dict[str, Callable], depends: tuple):
        self._compilers, self._depends = compilers, depends
        self._first, *_, self._last = compilers
        self._made: dict[str, Path] = {}  # of an equal module: a file for each stage, "json"

    def stage(self, name: str, module, metadata: dict):
        if name == self._first:
            self._note = kept(*self._depends, module.str_nodebug())
            self._made = _files(self._note.get_file("kernel"))
            if self._made:
                stored = json.loads(self._made["json"].read_bytes())
                metadata |= {key: stored[key] for key in stored.keys() - {"hash", "target"}}
        if self._made:
            made = self._made[name]
            return made.read_bytes() if name == self._last else made.read_text(encoding="utf-8")
        code = self._compilers[name](module, metadata)
        if name == self._last:
            self._note.put(metadata["hash"], "kernel")
        return code


def kept(*depends: object):
    """A directory of Triton's cache, of its own for what depends on this and on Triton."""
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.runtime.cache import get_cache_manager, triton_key

    key = triton_key(), sorted(get_cache_invalidating_env_vars().items()), *depends
    return get_cache_manager(hashlib.sha256(repr(key).encode()).hexdigest())


def _files(note: str | None) -> dict[str, Path]:
    """What is kept of the kernel whose hash a file holds; nothing if it was removed since."""
    from triton.runtime.cache import get_cache_manager

    if note is None:
        return {}
    cache = get_cache_manager(Path(note).read_text(encoding="utf-8"))
    group = next(Path(cache.cache_dir).glob("__grp__*.json"), None)
    paths = cache.get_group(group.name.removeprefix("__grp__")) if group is not None else None
    return {Path(path).suffix[1:]: Path(path) for path in (paths or {}).values()}
