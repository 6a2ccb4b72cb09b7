"""Script: next-token log-probabilities by llama.cpp (package xllamacpp), and the tokens of a text, from a GGUF file.

python read_with_llama_cpp.py REQUEST.json ANSWER.json (see ``request.py``)

llama.cpp's server runs in this process, on a free port of the loopback address: it is what users run, and it answers
with log-probabilities. Keys and values are kept in float32, where its default is float16.
"""

import json
import sys
from importlib.metadata import version
from typing import Any
from urllib.request import Request, urlopen

import xllamacpp


def served(path: str, tokens: int) -> Any:
    """Start the server of a file for a window of so many tokens."""
    settings = xllamacpp.CommonParams()
    settings.model.path = path
    settings.n_ctx = tokens
    settings.n_parallel = 1
    settings.cache_type_k = settings.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    settings.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    settings.no_extra_bufts = True  # weights repacked for a processor are rounded otherwise
    settings.n_gpu_layers = 0
    settings.ctx_shift = settings.warmup = settings.fit_params = False
    settings.cache_ram_mib = settings.n_ctx_checkpoints = 0
    settings.hostnames = ["127.0.0.1"]
    settings.verbosity = -1
    settings.port = 0
    return xllamacpp.Server(settings)


def read(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request."""
    server = served(request["model"], request["max_length"])

    def post(where: str, body: dict[str, Any]) -> Any:
        headers = {"Content-Type": "application/json"}
        with urlopen(Request(server.listening_address + where, json.dumps(body).encode(), headers)) as answer:
            return json.load(answer)

    def asked(prefix: int, **settings: Any) -> Any:
        body = {"prompt": request["ids"][:prefix], "temperature": 0, "ignore_eos": True, **settings}
        return post("/completion", body)

    def tokens_of(text: str, **settings: Any) -> Any:
        return post("/tokenize", {"content": text, "parse_special": False, **settings})["tokens"]

    tokens = [tokens_of(text, add_special=True) for text in request["texts"]]
    # The server tells no probabilities with a token that is a part of a character, so another one is generated. This
    # leaves the probabilities, which are those before sampling, as they are.
    whole = tokens_of("a", add_special=False)[-1]
    told = {"n_probs": request["top"], "post_sampling_probs": False, "samplers": [], "logit_bias": [[whole, 1e6]]}
    places = []
    for prefix in request["places"]:
        answer = asked(prefix, n_predict=1, **told)
        found = answer["completion_probabilities"][0]["top_logprobs"]
        places.append([(one["id"], one["logprob"]) for one in found])
    greedy = asked(request["greedy_from"], n_predict=request["greedy"], return_tokens=True)["tokens"] if places else []
    return {"version": version("xllamacpp"), "places": places, "greedy": greedy, "tokens": tokens}


if __name__ == "__main__":
    with open(sys.argv[1]) as asked_for, open(sys.argv[2], "w") as answer:
        json.dump(read(json.load(asked_for)), answer)
