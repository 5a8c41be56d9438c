"""An SGLang server as the decoder, by its own /generate.

The ids, and the counts of drafting in `meta_info.spec_*`, are the server's own. SGLang's gauges at
/metrics show the latest value only, so they are not read.
"""

from typing import ClassVar

from spsbench.methods.decoders.openai import OpenAiDecoder
from spsbench.serving.engines import Kind


class SglangDecoder(OpenAiDecoder):
    """A running SGLang server makes the text; see `OpenAiDecoder` for the arguments."""

    kinds: ClassVar[frozenset[Kind] | None] = frozenset((Kind.SGLANG,))
