"""A process that runs llama-cpp-python or OpenVINO GenAI and answers requests, a line of JSON each.

Its interpreter need not have this package: the file is run as a script and imports the standard
library, numpy and the engine alone. An answer lists blocks of tokens as they came, with their times
and what was drafted for each (-1 = the engine does not tell).
"""

import json
import os
import sys
import time
from itertools import islice
from typing import Any

LOOKUP = "lookup"  # a draft: what followed the same n-gram before
NGRAM = 2  # tokens of that n-gram, at most
Block = tuple[list[int], float, int]  # tokens, seconds since the start, drafted


class LlamaCpp:
    """llama-cpp-python over a GGUF file, plain or with a draft: prompt lookup, or a second file."""

    def __init__(self, path: str, draft: str, context: int, threads: int) -> None:
        import llama_cpp
        from llama_cpp.llama_speculative import LlamaDraftModel, LlamaPromptLookupDecoding

        common: dict[str, Any] = {"n_ctx": context, "verbose": False}
        common |= {"n_threads": threads, "n_threads_batch": threads} if threads else {}
        second = llama_cpp.Llama(draft, **common) if draft not in ("", LOOKUP) else None
        drafted = self._drafted = list[int]()  # tokens of each draft of the running request

        class Counted(LlamaDraftModel):  # type: ignore[misc]
            """A draft of at most `k` tokens, which notes its length."""

            k = 0

            def __call__(self, input_ids: Any, /, **_: Any) -> Any:
                import numpy as np

                if second is None:
                    drafts = LlamaPromptLookupDecoding(NGRAM, self.k)(input_ids)
                else:
                    room = min(self.k, context - len(input_ids) - 1)
                    tokens = second.generate(input_ids.tolist(), temp=0.0)
                    drafts = np.array(list(islice(tokens, room)), np.intc)
                drafted.append(len(drafts))
                return drafts

        self._draft = Counted() if draft else None
        self._model = llama_cpp.Llama(
            path, draft_model=self._draft, logits_all=bool(draft), **common
        )
        self.version = f"llama-cpp-python {llama_cpp.__version__}"

    def prompt(self, content: Any) -> list[int]:
        """Return the ids, with special ones, of a text or of messages in the model's template."""
        is_chat = not isinstance(content, str)
        if is_chat:
            from llama_cpp.llama_chat_format import Jinja2ChatFormatter

            ends = self._model.token_eos(), self._model.token_bos()
            special = [self._model.detokenize([t], special=True).decode() for t in ends]
            chat = Jinja2ChatFormatter(self._model.metadata["tokenizer.chat_template"], *special)
            content = chat(messages=content).prompt
        # A template writes the BOS itself.
        return list(self._model.tokenize(content.encode(), add_bos=not is_chat, special=True))

    def generate(self, ids: list[int], request: dict[str, Any], began: float) -> dict[str, Any]:
        """Return `blocks` after `ids` and `finish` (eos, stop or length), from an empty cache.

        A block is (tokens, seconds since `began`, tokens drafted for it); the last one has the EOS
        or what completes a stop string. `request` has the warp, the limit `tokens`, `k`, `seed`,
        `stop` and `ignore_eos`.
        """
        import llama_cpp

        vocabulary = llama_cpp.llama_model_get_vocab(self._model.model)
        self._drafted.clear()
        if self._draft is not None:
            self._draft.k = request["k"]
        self._model.reset()  # else a prompt in the cache would have no prefill
        self._model.set_seed(request["seed"])
        warp = {name: request[name] for name in ("top_k", "top_p", "min_p")}
        tokens = self._model.generate(
            ids, temp=request["temperature"], repeat_penalty=1.0, typical_p=1.0, **warp
        )
        blocks: list[Block] = []
        tokens_so_far: list[int] = []
        finish = "length"
        for token in tokens if request["tokens"] else ():
            came, drafts = time.perf_counter() - began, len(self._drafted)
            if blocks and drafts + 1 == len(blocks) and self._draft is not None:
                blocks[-1] = ([*blocks[-1][0], token], came, blocks[-1][2])
            else:
                blocks.append(([token], came, self._drafted[-1] if drafts else 0))
            tokens_so_far.append(token)
            if not request["ignore_eos"] and llama_cpp.llama_vocab_is_eog(vocabulary, token):
                finish = "eos"
                break
            if any(stop in self.text(tokens_so_far) for stop in request["stop"]):
                finish = "stop"
                break
            if len(tokens_so_far) == request["tokens"]:
                break
        return {"blocks": blocks, "finish": finish}

    def text(self, tokens: list[int]) -> str:
        """Decode tokens; empty for a file without a tokenizer, where llama.cpp would abort."""
        import llama_cpp

        vocabulary = llama_cpp.llama_model_get_vocab(self._model.model)
        if llama_cpp.llama_vocab_type(vocabulary) == llama_cpp.LLAMA_VOCAB_TYPE_NONE:
            return ""
        return str(self._model.detokenize(tokens).decode(errors="replace"))


class OpenVino:
    """OpenVINO GenAI over a folder or a GGUF file, plain or with a draft: lookup, or a folder."""

    def __init__(self, path: str, draft: str, context: int, threads: int) -> None:
        import openvino_genai as genai

        options = {"INFERENCE_NUM_THREADS": threads} if threads else {}
        extra: dict[str, Any] = {}
        if draft == LOOKUP:
            extra["prompt_lookup"] = True
        elif draft:
            extra["draft_model"] = genai.draft_model(draft, "CPU", **options)
        self._genai, self._lookup, self._drafts = genai, draft == LOOKUP, bool(draft)
        self._pipeline = genai.LLMPipeline(path, "CPU", **options, **extra)
        self._tokenizer = self._pipeline.get_tokenizer()
        self.version = f"openvino-genai {genai.__version__}"

    def prompt(self, content: Any) -> list[int]:
        """Return the ids, with special ones, of a text or of messages in the model's template."""
        if isinstance(content, str):
            return self._ids(content, special=True)
        text = self._tokenizer.apply_chat_template(content, add_generation_prompt=True)
        return self._ids(text, special=False)

    def _ids(self, text: str, *, special: bool) -> list[int]:
        encoded = self._tokenizer.encode(text, add_special_tokens=special).input_ids
        return [int(token) for token in encoded.data[0]]

    def generate(self, ids: list[int], request: dict[str, Any], began: float) -> dict[str, Any]:
        """Return `blocks` after `ids`, timed from `began`, and `finish`: eos, stop or length.

        A block is (tokens, seconds since `began`, tokens drafted for it: 0, or -1 with a draft,
        whose length is unknown). `request` has the warp, the limit `tokens`, `k`, `seed`, `stop`
        and `ignore_eos`. A text below the limit without the EOS id ended by a stop string, if there
        are any.
        """
        import numpy as np
        import openvino

        genai, blocks = self._genai, list[Block]()
        drafted = -1 if self._drafts else 0

        class Clock(genai.StreamerBase):  # type: ignore[misc, name-defined]
            """Notes each block of tokens."""

            def write(self, tokens: Any) -> Any:
                """Note one block, and have the pipeline go on."""
                listed = tokens if isinstance(tokens, list) else [tokens]
                blocks.append((listed, time.perf_counter() - began, drafted))
                return genai.StreamingStatus.RUNNING

            def end(self) -> None:
                """Do nothing: the blocks are complete."""

        end = self._tokenizer.get_eos_token_id()  # -1: none, which the pipeline refuses
        config = genai.GenerationConfig()
        config.max_new_tokens = request["tokens"]
        config.ignore_eos = request["ignore_eos"] or end < 0
        config.set_eos_token_id(max(end, 0))
        config.rng_seed, config.stop_strings = request["seed"], set(request["stop"])
        if request["temperature"] > 0:
            config.do_sample, config.temperature = True, request["temperature"]
            config.top_p, config.min_p = request["top_p"], request["min_p"]
            config.top_k = request["top_k"] or sys.maxsize
        if self._drafts:
            config.num_assistant_tokens = request["k"]
            config.max_ngram_size = NGRAM if self._lookup else config.max_ngram_size
        tensor = openvino.Tensor(np.array([ids], dtype=np.int64))
        generated = list(self._pipeline.generate(tensor, config, Clock()).tokens[0])
        finish = "length"
        if len(generated) < request["tokens"]:
            ended = generated and generated[-1] == end
            finish = "eos" if ended or not request["stop"] else "stop"
        return {"blocks": blocks, "finish": finish}

    def text(self, tokens: list[int]) -> str:
        """Decode tokens."""
        return str(self._tokenizer.decode(tokens))


ENGINES: dict[str, type[Any]] = {"llamacpp": LlamaCpp, "openvino": OpenVino}


def serve_engine(name: str, options: dict[str, Any]) -> None:
    """Load an engine and write its `version`, then an answer to each line of the standard input.

    Both directions are JSON objects, a line each. An answer has blocks, finish, text (cut at stop
    strings) and prompt_tokens; a failure has `error` alone, and one to load is the last line. What
    the engine prints goes to the standard error.
    """
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the engine prints is no answer

    def say(value: Any) -> None:
        out.write(json.dumps(value) + "\n")
        out.flush()

    try:
        engine = ENGINES[name](**options)
    except Exception as error:  # from any library
        say({"error": f"{type(error).__name__}: {error}"})
        return
    say({"version": engine.version})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            ids = request["ids"] or engine.prompt(request["content"])
            result = engine.generate(ids, request, time.perf_counter())
        except Exception as error:  # from any library
            say({"error": f"{type(error).__name__}: {error}"})
            continue
        tokens = [token for block, *_ in result["blocks"] for token in block]
        text = engine.text(tokens)
        for stop in request["stop"]:
            text = text.partition(stop)[0]
        say({**result, "text": text, "prompt_tokens": len(ids)})


if __name__ == "__main__":
    serve_engine(sys.argv[1], json.loads(sys.argv[2]))
