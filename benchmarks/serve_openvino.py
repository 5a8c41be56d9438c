"""OpenVINO GenAI's pipeline behind OpenAI's /v1/completions, with token ids, for `sps check`.

    python benchmarks/serve_openvino.py MODEL [--draft MODEL] [-k 4] [--port 8000]

The models are folders in OpenVINO's format, with their tokenizers (`benchmarks/peers.py` and
optimum-intel make them). One request at a time; the sampling is the pipeline's own, without cuts.
A generation that fails is answered with 500, or, with --redraw, drawn again from another seed; the
pipeline is opened anew after it, for it then accepts other drafts. Only this server's interpreter
needs openvino-genai.
"""

import argparse
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai


class Pipeline:
    """A target, perhaps with a draft model; calls wait for each other."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.lock = threading.Lock()
        self.pipeline = self.open()

    def open(self) -> Any:
        """Return a new pipeline."""
        hints, draft = dict(each.split("=", 1) for each in self.given.hint), self.given.draft
        more = {"draft_model": genai.draft_model(draft, "CPU", **hints)} if draft else {}
        return genai.LLMPipeline(self.given.model, "CPU", **hints, **more)

    def encode(self, prompt: str | list[int]) -> list[int]:
        """Return the ids of a prompt by the pipeline's tokenizer."""
        if isinstance(prompt, list):
            return prompt
        return [int(i) for i in self.pipeline.get_tokenizer().encode(prompt).input_ids.data[0]]

    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request, in OpenAI's schema."""
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos = body.get("max_tokens", 16), True
        config.set_eos_token_id(0)
        config.temperature = body.get("temperature", 1.0)
        config.do_sample = config.temperature > 0
        if config.do_sample:
            config.top_p, config.rng_seed = body.get("top_p", 1.0), body.get("seed", 0)
        else:
            config.temperature = 1.0
        if self.given.draft:
            config.num_assistant_tokens = self.given.k
        with self.lock:
            prompt = self.encode(body["prompt"])
            ids = self.draw(prompt, config)
            text = self.pipeline.get_tokenizer().decode(ids)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
        choice = {"index": 0, "text": text, "token_ids": ids, "finish_reason": "length"}
        return {"choices": [choice | {"prompt_token_ids": prompt}], "usage": usage}

    def draw(self, prompt: list[int], config: Any) -> list[int]:
        """Return the ids of a text, with --redraw of the first seed that ends without an error."""
        while True:
            try:
                tensor = openvino.Tensor(np.array([prompt], dtype=np.int64))
                return [int(i) for i in self.pipeline.generate(tensor, config).tokens[0]]
            except RuntimeError as error:
                print(f"seed {config.rng_seed}: {str(error).splitlines()[0][:120]}", flush=True)
                self.pipeline = self.open()
                if not self.given.redraw:
                    raise
                config.rng_seed += 1_000_003


def handler_of(pipeline: Pipeline) -> type[BaseHTTPRequestHandler]:
    """Return the class that answers requests."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def send(self, value: Any, status: int = 200) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            if self.path == "/v1/models":
                self.send({"data": [{"id": "openvino", "owned_by": "openvino"}]})
            else:
                self.send({"error": "no such page"}, 404)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if self.path != "/v1/completions":
                self.send({"error": "no such page"}, 404)
            elif body.get("stream") or body.get("logprobs"):
                self.send({"error": "neither streams nor logprobs"}, 400)
            else:
                try:
                    self.send(pipeline.generate(body))
                except RuntimeError as error:
                    self.send({"error": {"message": str(error).splitlines()[0]}}, 500)

    return Handler


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--draft")
    parser.add_argument("-k", type=int, default=4)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--hint", action="append", default=[], help="NAME=VALUE of the device")
    parser.add_argument("--redraw", action="store_true", help="draw failed texts again")
    given = parser.parse_args()
    ThreadingHTTPServer(("127.0.0.1", given.port), handler_of(Pipeline(given))).serve_forever()


if __name__ == "__main__":
    main()
