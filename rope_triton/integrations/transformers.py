"""Hugging Face Transformers: its function on this package's kernel, and models that call it."""

import functools
import inspect
import itertools
import sys
import warnings
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import NamedTuple

import torch

from rope_triton import api, checks, reference
from rope_triton.integrations._patching import Patch, Replacement

__all__ = ["apply_rotary_pos_emb", "apply_rotary_pos_emb_vision", "patch", "Convention"]

_PARAMETERS = {
    "apply_rotary_pos_emb": ["q", "k", "cos", "sin", "unsqueeze_dim"],
    "apply_rotary_pos_emb_vision": ["q", "k", "cos", "sin"],
}
"""The functions of models that are replaced, and what they take."""


class Convention(NamedTuple):
    """How a model's function rotates.

    interleaved: the pairs are ``(2i, 2i + 1)``, not ``(i, i + d2/2)``. repeated: so are a pair's
    two values in the tables. rounding: as in :func:`rope_triton.apply_rotary_pos_emb`.
    """

    interleaved: bool = False
    repeated: bool = False
    rounding: str = "each"


LLAMA, VISION = Convention(), Convention(rounding="once")


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
    checks.check_tensors(q=q, k=k)
    q, k = (x.transpose(1, 2) if x.dim() == 4 else x for x in (q, k))  # else it is refused
    q, k = api.apply_qk_rotary_emb(q, k, cos, sin, **options)
    return q.transpose(1, 2), k.transpose(1, 2)


def apply_rotary_pos_emb_vision(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    convention: Convention = VISION,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate queries and keys of an image encoder; Transformers' function of this name.

    As :func:`apply_rotary_pos_emb`, errors too, but ``q`` and ``k`` are ``[s, h, d]``, the tables
    ``[s, d2]``, and by default only the result is rounded.

    References
    ----------
    ``transformers.models.qwen2_vl.modeling_qwen2_vl.apply_rotary_pos_emb_vision``.
    """
    q, k, cos, sin = (x[None] if isinstance(x, torch.Tensor) else x for x in (q, k, cos, sin))
    q, k = apply_rotary_pos_emb(q, k, cos, sin, 2, convention=convention)
    return q[0], k[0]


def _of_each_pair(name, table, repeated):
    """``[1 or b, s, d2/2]`` of a table with both channels of each pair."""
    if not isinstance(table, torch.Tensor) or table.dim() != 3 or table.shape[-1] % 2:
        shape = getattr(table, "shape", type(table).__name__)
        raise ValueError(f"{name} must have shape [1 or b, s, d2] with an even d2, got {shape}")
    return table[..., ::2] if repeated else table[..., : table.shape[-1] // 2]


# --- models ---------------------------------------------------------------------------------------


def patch(*models: torch.nn.Module) -> Patch:
    """Let models of Transformers rotate by this package.

    What is replaced are the functions ``apply_rotary_pos_emb`` and ``apply_rotary_pos_emb_vision``
    of the models' code, and no other: all models of the same architecture in this process are
    patched, also later ones. Each is replaced by one that rounds as it does, see
    :func:`convention_of`.

    Parameters
    ----------
    *models : torch.nn.Module
        Models of Transformers. None: of every architecture that is loaded.

    Returns
    -------
    Patch
        Its ``close()`` restores the functions; in a ``with`` statement, the end of the block does.
        ``replaced`` names them.

    Raises
    ------
    TypeError
        If a model is no ``torch.nn.Module``.
    ValueError
        If a model's code has no such function, or none is loaded.
    NotImplementedError
        If that of a model rotates in another way; without models, a warning names it.
    """
    loaded = (name for name in list(sys.modules) if name.startswith("transformers.models."))
    targets = set().union(*map(_functions_of, models)) if models else _functions_in(loaded)
    if not targets:
        raise ValueError("no model of Transformers that rotates is loaded")
    functions: dict[tuple[ModuleType, str], Callable] = {}
    for module, name in sorted(targets, key=lambda target: (target[0].__name__, target[1])):
        function = getattr(module, name)
        if isinstance(function, Replacement):
            functions[module, name] = function
            continue
        try:
            convention = convention_of(function, name)
        except NotImplementedError as error:
            if models:
                raise
            warnings.warn(f"{module.__name__} is left as it is: {error}", stacklevel=2)
            continue
        functions[module, name] = functools.partial(globals()[name], convention=convention)
    return Patch(functions)


def _functions_of(model: torch.nn.Module) -> set[tuple[ModuleType, str]]:
    """The modules of a model's code that have functions to replace, with the functions' names."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"a model must be a torch.nn.Module, got {model!r}")
    functions = _functions_in({type(part).__module__ for part in model.modules()})
    if not functions:
        raise ValueError(
            f"the code of {type(model).__name__} has no function {' or '.join(_PARAMETERS)}"
        )
    return functions


def _functions_in(names: Iterable[str]) -> set[tuple[ModuleType, str]]:
    modules = [sys.modules[name] for name in names if name in sys.modules]
    return {(module, name) for module in modules for name in _PARAMETERS if name in vars(module)}


def convention_of(function: Callable, name: str = "apply_rotary_pos_emb") -> Convention:
    """How a model's function of this name rotates, found by calling it with a few numbers.

    Raises
    ------
    NotImplementedError
        If it takes other arguments, or no :class:`Convention` gives its results bit by bit.
    """
    parameters = list(inspect.signature(function).parameters)
    if parameters != _PARAMETERS[name]:
        raise NotImplementedError(f"it takes {parameters}, not {_PARAMETERS[name]}")
    images = "unsqueeze_dim" not in parameters
    either = False, True
    for rounding, interleaved, repeated in itertools.product(("each", "once"), either, either):
        convention = Convention(interleaved, repeated, rounding)
        if all(_agrees(function, convention, rotated, images) for rotated in (16, 8)):
            return convention
    raise NotImplementedError("it does not rotate as any convention that is known")


def _agrees(function: Callable, convention: Convention, rotated: int, images: bool) -> bool:
    """Whether the function has the convention's bits where it rotates so many of 16 channels."""
    interleaved, repeated, rounding = convention
    random: dict = {"generator": torch.Generator("cpu").manual_seed(0), "device": "cpu"}
    q, k = (torch.randn(2, heads, 5, 16, **random).bfloat16() for heads in (3, 1))
    angles = torch.randn(1, 5, rotated // 2, **random)
    tables = angles.cos().bfloat16(), angles.sin().bfloat16()
    wide = [x.repeat_interleave(2, -1) if repeated else torch.cat((x, x), -1) for x in tables]
    try:
        if images:  # positions before heads, and no batch
            q, k = q[:1], k[:1]
            call = *(x[0].transpose(0, 1) for x in (q, k)), *(x[0] for x in wide)
            results = [x.transpose(0, 1)[None] for x in function(*call)]
        else:
            results = function(q, k, *wide)
    except RuntimeError:
        return rotated < 16  # it takes no part of the channels
    cos, sin = (table.permute(1, 0, 2)[:, :, None] for table in tables)
    options: dict = {"tensor_format": "bhsd", "interleaved": interleaved, "rounding": rounding}
    expected = (reference.rotate(x, cos, sin, **options) for x in (q, k))
    return all(map(torch.equal, results, expected))
