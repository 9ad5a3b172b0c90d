"""Hugging Face Transformers: its function on this package's kernel, and models that call it."""

import contextlib
import functools
import inspect
import itertools
import sys
import warnings
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import NamedTuple

import torch

from rope_triton import api, reference

_NAME, _PARAMETERS = "apply_rotary_pos_emb", ["q", "k", "cos", "sin", "unsqueeze_dim"]


class Convention(NamedTuple):
    """How a model's function rotates.

    interleaved: the pairs are ``(2i, 2i + 1)``, not ``(i, i + d2/2)``. repeated: so are a pair's
    two values in the tables. rounding: as in :func:`rope_triton.apply_rotary_pos_emb`.
    """

    interleaved: bool = False
    repeated: bool = False
    rounding: str = "each"


LLAMA = Convention()


def apply_rotary_pos_emb(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    unsqueeze_dim: int = 1,
    *,
    convention: Convention = LLAMA,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate queries and keys; signature and semantics of Transformers' function.

    By default those of Llama's, whose every product is rounded to the dtype of ``q``.

    Parameters
    ----------
    q, k : torch.Tensor
        ``[b, h, s, d]``, or ``[b, s, h, d]`` with ``unsqueeze_dim=2``; any strides; float32,
        float16 or bfloat16. The numbers of heads may differ.
    cos, sin : torch.Tensor
        A value for each rotated channel, ``[1 or b, s, d2]`` with ``d2 <= d``, as the models'
        rotary embeddings return them: those of a pair are taken to be equal. Channels from ``d2``
        on are returned as they are.
    unsqueeze_dim : int
        The dimension of heads in ``q`` and ``k``: 1 or 2.
    convention : Convention
        How the model rotates.

    Returns
    -------
    tuple of torch.Tensor
        Shapes and dtype of ``q`` and ``k``.

    Raises
    ------
    TypeError, ValueError
        As in :func:`rope_triton.apply_rotary_emb`; also for another ``unsqueeze_dim``.

    References
    ----------
    ``transformers.models.llama.modeling_llama.apply_rotary_pos_emb``.
    """
    if unsqueeze_dim not in (1, 2):
        raise ValueError(f"unsqueeze_dim must be 1 or 2, got {unsqueeze_dim!r}")
    interleaved, repeated, rounding = convention
    cos, sin = (_of_each_pair(name, x, repeated) for name, x in (("cos", cos), ("sin", sin)))
    options: dict = {"interleaved": interleaved, "rounding": rounding}
    if unsqueeze_dim == 2:
        return api.apply_qk_rotary_emb(q, k, cos, sin, **options)
    q, k = api.apply_qk_rotary_emb(q.transpose(1, 2), k.transpose(1, 2), cos, sin, **options)
    return q.transpose(1, 2), k.transpose(1, 2)


def _of_each_pair(name, table, repeated):
    """``[1 or b, s, d2/2]`` of a table with both channels of each pair."""
    if not isinstance(table, torch.Tensor) or table.dim() != 3 or table.shape[-1] % 2:
        given = getattr(table, "shape", type(table).__name__)
        raise ValueError(f"{name} must have shape [1 or b, s, d2] with an even d2, got {given}")
    return table[..., ::2] if repeated else table[..., : table.shape[-1] // 2]


# --- models ---------------------------------------------------------------------------------------


def patch(*models: torch.nn.Module) -> contextlib.ExitStack:
    """Let models of Transformers rotate by this package.

    What is replaced is the function ``apply_rotary_pos_emb`` of the models' code, and no other: all
    models of the same architecture in this process are patched, also later ones. It is replaced by
    one that rounds as it does, see :func:`convention_of`.

    Parameters
    ----------
    *models : torch.nn.Module
        Models of Transformers. None: of every architecture that is loaded.

    Returns
    -------
    contextlib.ExitStack
        Its ``close()`` restores the functions; in a ``with`` statement, the end of the block does.

    Raises
    ------
    ValueError
        If a model's code has no function ``apply_rotary_pos_emb``, or none is loaded.
    NotImplementedError
        If that of a model rotates in another way; without models, a warning names it.
    """
    found = {module for model in models for module in _modules_of(model)} or _loaded()
    with contextlib.ExitStack() as undo:
        for module in sorted(found, key=lambda module: module.__name__):
            function = getattr(module, _NAME)
            if getattr(function, "func", None) is apply_rotary_pos_emb:
                continue  # it is patched
            try:
                convention = convention_of(function)
            except NotImplementedError as error:
                if models:
                    raise
                warnings.warn(f"{module.__name__} is left as it is: {error}", stacklevel=2)
                continue
            setattr(module, _NAME, functools.partial(apply_rotary_pos_emb, convention=convention))
            undo.callback(setattr, module, _NAME, function)
        return undo.pop_all()


def _modules_of(model: torch.nn.Module) -> set[ModuleType]:
    names = {type(part).__module__ for part in model.modules()}
    found = {sys.modules[name] for name in names if hasattr(sys.modules.get(name), _NAME)}
    if not found:
        raise ValueError(f"the code of {type(model).__name__} has no function {_NAME}")
    return found


def _loaded() -> set[ModuleType]:
    found = {
        module
        for name, module in list(sys.modules.items())
        if name.startswith("transformers.models.") and _NAME in vars(module)
    }
    if not found:
        raise ValueError("no model of Transformers that rotates is loaded")
    return found


def convention_of(function: Callable) -> Convention:
    """How a model's function rotates, found by calling it with a few numbers.

    Raises
    ------
    NotImplementedError
        If it takes other arguments, or no :class:`Convention` gives its results bit by bit.
    """
    parameters = list(inspect.signature(function).parameters)
    if parameters != _PARAMETERS:
        raise NotImplementedError(f"it takes {parameters}, not {_PARAMETERS}")
    for convention in _conventions():
        if all(_agrees(function, convention, rotated) for rotated in (16, 8)):
            return convention
    raise NotImplementedError("it does not rotate as any convention that is known")


def _conventions() -> Iterable[Convention]:
    either = False, True
    for rounding, interleaved, repeated in itertools.product(("each", "once"), either, either):
        yield Convention(interleaved, repeated, rounding)


def _agrees(function: Callable, convention: Convention, rotated: int) -> bool:
    """Whether the function has the convention's bits where it rotates so many of 16 channels."""
    interleaved, repeated, rounding = convention
    random: dict = {"generator": torch.Generator("cpu").manual_seed(0), "device": "cpu"}
    q, k = (torch.randn(2, heads, 5, 16, **random).bfloat16() for heads in (3, 1))
    angles = torch.randn(1, 5, rotated // 2, **random)
    tables = angles.cos().bfloat16(), angles.sin().bfloat16()
    wide = (x.repeat_interleave(2, -1) if repeated else torch.cat((x, x), -1) for x in tables)
    try:
        found = function(q, k, *wide)
    except RuntimeError:
        return rotated < 16  # it takes no part of the channels
    cos, sin = (table.permute(1, 0, 2)[:, :, None] for table in tables)
    options: dict = {"tensor_format": "bhsd", "interleaved": interleaved, "rounding": rounding}
    expected = (reference.rotate_by_tables(x, cos, sin, **options) for x in (q, k))
    return all(map(torch.equal, found, expected))
