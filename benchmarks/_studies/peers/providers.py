"""Names of all providers, what each computes, and how to install it. Imports no torch."""

PROVIDERS = {
    "rope-triton": "this package by angles: sines inside the kernel, rounded once",
    "rope-triton-tables": "this package by ready-made tables, rounded once",
    "copy": "no rotation: a copy of the input, and of the gradient",
    "pytorch": "x * cos + rotate_half(x) * sin on ready-made tables, every step rounded",
    "compile": "the same formula by torch.compile, with static shapes",
    "compile-angles": "the formula by angles, rounded once, by torch.compile with static shapes",
    "seed": "a Triton program for each position and head, looping over the batch; float32 tables",
    "transformer-engine": "fused apply_rotary_pos_emb by angles, rounded once",
    "flash-attention": "apply_rotary_emb by ready-made tables, rounded once; prefers bshd",
    "liger": "liger_rotary_pos_emb of queries and keys by tables, in place in bshd, all rounded",
    "fla": "rotary_embedding by ready-made tables, rounded once; bshd, or it copies",
    "quack": "apply_rotary_emb by ready-made tables, in CuTe DSL, rounded once; prefers bshd",
    "huggingface": "Llama's apply_rotary_pos_emb of queries and keys by tables, every step rounded",
    "vllm": "the operator rotary_embedding by tables, in place, forward only",
    "flashinfer": "apply_rope_with_cos_sin_cache of queries and keys, by float32 tables, "
    "rounded once; half precision, forward only",
    # It computes sines of angles of its own, and appends keys and values to a cache.
    "xformers": "rope_padded by positions, forward only; bshd, or it is copied",
    # Last: importing it changes torch and Transformers for what comes after.
    "unsloth": "fast_rope_embedding of queries and keys by tables, in place in bshd, all rounded",
}

# On tensors as they lie in memory. Sequences that have positions or tables of their own each begin
# at a row of one table. What a library copies, fills and checks besides is its own, and counts.
MODEL_CALLS = {
    "rope-triton": "by angles, queries and keys in one launch",
    "rope-triton-tables": "by ready-made tables, queries and keys in one launch",
    "copy": "a copy of each tensor, and of each gradient",
    "flash-attention": "apply_rotary_emb of each tensor; copies channels without angles first",
    "fla": "rotary_embedding of each tensor; copies views, gradients and channels without angles, "
    "fills its output first, checks start positions on the GPU",
    "liger": "liger_rotary_pos_emb of queries and keys by halves, in place: channels without "
    "angles are not touched; large gradients by CuTe DSL where that is installed",
    "quack": "apply_rotary_emb of each tensor; copies channels without angles first",
    "vllm": "the operator rotary_embedding of all tensors, in place: channels without angles are "
    "not touched; forward only",
    "flashinfer": "apply_rope_with_cos_sin_cache of queries and keys by float32 tables; forward "
    "only",
}
"""What is called for a layer of a model, by each provider that is measured there."""

INSTALL = {
    "transformer-engine": "pip install --no-build-isolation 'transformer_engine[pytorch]'",
    "flash-attention": "pip install --no-build-isolation flash-attn",
    "liger": "pip install liger-kernel",
    "fla": "pip install flash-linear-attention",
    "quack": "pip install quack-kernels",
    "huggingface": "pip install transformers",
    "vllm": "pip install vllm",
    "flashinfer": "pip install flashinfer-python",
    "xformers": "pip install xformers",
    "unsloth": "pip install unsloth",
}
