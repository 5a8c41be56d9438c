"""A plugin of vLLM 0.32 that plants a fault of rollback, for `sps check --adversary` to find.

FAULT names it, or several:
stale-keys: the row of keys of a draft rejected at place 2 is not written anew.
ignored-end: an end token is noticed as the last token of a pass alone, not inside a draft.
missed-stop: a stop string is looked for in the text of one pass.
"""

import os
from typing import Any

import torch

PLACE = 2


def plant() -> None:
    """Plant the faults that FAULT names, joined by commas; none without it."""
    faults = {"stale-keys": keep_stale_keys, "ignored-end": ignore_ends, "missed-stop": miss_stops}
    for name in filter(None, os.environ.get("FAULT", "").split(",")):
        faults[name]()


def keep_stale_keys() -> None:
    """Leave the keys of a token as they are where its slot had the last pass's draft at `PLACE`."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl as Attention

    write, passes = Attention.do_kv_cache_update, dict[int, dict[int, int]]()

    def update(
        self: Any,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: Any,
        slots: torch.Tensor,
    ) -> None:
        places: dict[int, int] = {}
        for slot in slots.tolist():
            places[slot] = places.get(slot - 1, -1) + 1
        before = passes.get(id(layer), {})
        passes[id(layer)] = places
        stale = [place == 0 and before.get(slot) == PLACE for slot, place in places.items()]
        written = ~torch.tensor(stale)
        if len(written) == len(slots):  # no slot twice, as in padding
            key, value = key[: len(slots)][written], value[: len(slots)][written]
            slots = slots[written]
        write(self, layer, key, value, cache, slots)

    Attention.do_kv_cache_update = update


def ignore_ends() -> None:
    """Go on after an end token that is not the last token of its pass."""
    from vllm.v1.core.sched import scheduler
    from vllm.v1.request import RequestStatus

    def append(
        self: Any, request: Any, tokens: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        for count, token in enumerate(tokens, 1):
            request.append_output_token_ids(token)
            if not scheduler.check_stop(request, self.max_model_len):
                continue
            if request.status == RequestStatus.FINISHED_STOPPED and count < len(tokens):
                request.status = RequestStatus.RUNNING
                continue
            del tokens[count:]
            return tokens, True
        return tokens, False

    scheduler.Scheduler._update_request_with_output = append


def miss_stops() -> None:
    """Look for stop strings in the text of one pass."""
    from vllm.v1.engine import detokenizer

    def check(
        output_text: str, new_char_count: int, stop: list[str], include_in_output: bool
    ) -> Any:
        at = len(output_text) - new_char_count
        places = [(output_text.find(text, at), text) for text in stop if new_char_count]
        return next(((text, place) for place, text in sorted(places) if place >= 0), None)

    detokenizer.check_stop_strings = check
