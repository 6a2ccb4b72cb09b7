"""Script: next-token log-probabilities by vLLM in float32, without its tokenizer.

python read_with_vllm.py REQUEST.json ANSWER.json (see ``request.py``)
"""

import json
import os
import sys
from typing import Any

# The engine in this process, the CPU's cache of keys in GiB, no reports to its makers, no progress on the screen.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # else it compiles for 20 s before the first token

import vllm


def read(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request."""
    length = request["max_length"]
    model = vllm.LLM(
        request["model"],
        dtype="float32",
        max_model_len=length,
        max_num_seqs=1,
        max_num_batched_tokens=min(length, 8192),
        enable_chunked_prefill=True,
        max_logprobs=request["top"],
        enforce_eager=True,
        skip_tokenizer_init=True,
        disable_log_stats=True,
        seed=0,
    )

    def asked(prefixes: list[int], **settings: Any) -> list[Any]:
        prompts = [{"prompt_token_ids": request["ids"][:prefix]} for prefix in prefixes]
        sampling = vllm.SamplingParams(temperature=0, ignore_eos=True, detokenize=False, **settings)
        return [answer.outputs[0] for answer in model.generate(prompts, sampling, use_tqdm=False)]

    places = asked(request["places"], max_tokens=1, logprobs=request["top"])
    # min_tokens: as the other engines, it never chooses the end of the text.
    [greedy] = asked([request["greedy_from"]], max_tokens=request["greedy"], min_tokens=request["greedy"])
    return {
        "version": vllm.__version__,
        "places": [[(token, found.logprob) for token, found in place.logprobs[0].items()] for place in places],
        "greedy": list(greedy.token_ids),
    }


if __name__ == "__main__":
    with open(sys.argv[1]) as asked_for, open(sys.argv[2], "w") as answer:
        json.dump(read(json.load(asked_for)), answer)
