"""The one kernel, in plain torch."""

import torch


def rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox=True, **_):
    """Rotate the first part of every head of query and key, in place. Half of the cache's row is cos, half sin."""
    if not is_neox:
        raise NotImplementedError("Only rotation by halves is written down here.")
    cos, sin = cos_sin_cache[positions.flatten()].unsqueeze(1).chunk(2, dim=-1)
    half = cos.shape[-1]
    for heads in (query, key):
        if heads is not None:
            each = heads.view(positions.numel(), -1, head_size)
            one, two = each[..., :half].clone(), each[..., half : 2 * half].clone()
            each[..., :half] = one * cos.to(one) - two * sin.to(one)
            each[..., half : 2 * half] = torch.addcmul(two * cos.to(one), one, sin.to(one))
