"""A plugin of vLLM 0.32 that mends its CPU shim of `expand_kernel` (vLLM #55005).

The shim as released fills a copy of the buffer, so that temperature, top-k and top-p of drafted
positions stay uninitialised. This one writes the caller's buffer.
"""

import torch


def mend() -> None:
    """Put the mended function in place of the released one."""
    from vllm.utils import cpu_triton_utils

    def expand(
        output: torch.Tensor,
        values: torch.Tensor,
        ends: torch.Tensor,
        replace_from: float,
        replace_to: float,
        MAX_NUM_TOKENS: int | None = None,  # the kernel's own spelling
    ) -> None:
        counts = torch.diff(ends, prepend=ends.new_zeros(1)).long()
        replaced = torch.where(values == replace_from, torch.full_like(values, replace_to), values)
        output.copy_(torch.repeat_interleave(replaced, counts))

    cpu_triton_utils._expand_kernel_impl = expand
