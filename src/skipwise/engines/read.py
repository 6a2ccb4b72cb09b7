"""Read a checkpoint in one engine, as a script: python read.py ENGINE REQUEST.json ANSWER.json

It runs on the CPU in float32, in the environment of the engine, and imports nothing of Skipwise. ``check.Request`` describes
the request. The answer has ``places`` (for each a list of token and log-probability) and, for llama.cpp, ``tokens`` of each
text. ``python read.py versions`` prints the packages of the environment.
"""

import json
import os
import sys
from importlib.metadata import distributions
from typing import Any
from urllib.request import Request, urlopen


def read_with_transformers(request: dict[str, Any]) -> dict[str, Any]:
    """Read a checkpoint in transformers 4.45 or newer."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        request["model"], trust_remote_code=False, torch_dtype=torch.float32
    ).eval()
    ids, places = torch.tensor([request["ids"]]), torch.tensor(request["places"])

    def keep_places(module: torch.nn.Module, hidden: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        return (hidden[0][:, places - 1],)  # the logits of all tokens would not fit in memory

    hook = model.get_output_embeddings().register_forward_pre_hook(keep_places)
    with torch.no_grad():
        logits = model(ids[:, : max(request["places"])], use_cache=False).logits[0]
        hook.remove()
        # Some versions fail only in a second pass beyond the window, as generation makes it.
        model(ids[:, -1:], position_ids=torch.tensor([[ids.shape[1] - 1]]), use_cache=False)
        top = torch.log_softmax(logits.double(), -1).topk(min(request["top"], logits.shape[-1]))
    values = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return {"places": [list(zip(*place, strict=True)) for place in values]}


def read_with_vllm(request: dict[str, Any]) -> dict[str, Any]:
    """Read a checkpoint in vLLM, without its tokenizer."""
    for name, value in {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "4",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "TORCHDYNAMO_DISABLE": "1",  # else it compiles for 20 s before the first token
    }.items():
        os.environ.setdefault(name, value)
    import vllm

    model = vllm.LLM(
        request["model"],
        dtype="float32",
        max_model_len=request["max_length"],
        max_num_seqs=1,
        max_num_batched_tokens=min(request["max_length"], 8192),
        enable_chunked_prefill=True,
        max_logprobs=request["top"],
        enforce_eager=True,
        skip_tokenizer_init=True,
        disable_log_stats=True,
    )
    prompts = [{"prompt_token_ids": request["ids"][:place]} for place in request["places"]]
    sampling = vllm.SamplingParams(
        temperature=0, ignore_eos=True, detokenize=False, max_tokens=1, logprobs=request["top"]
    )
    answers = model.generate(prompts, sampling, use_tqdm=False)
    places = [answer.outputs[0].logprobs[0] for answer in answers]
    return {"places": [[(token, value.logprob) for token, value in place.items()] for place in places]}


def read_with_llama_cpp(request: dict[str, Any]) -> dict[str, Any]:
    """Read a GGUF file in llama.cpp's server (package xllamacpp), on a free port of the loopback address."""
    import xllamacpp

    settings = xllamacpp.CommonParams()
    settings.model.path = request["model"]
    settings.n_ctx = request["max_length"]
    settings.n_parallel = 1
    settings.n_gpu_layers = 0
    settings.verbosity = -1
    settings.cache_type_k = settings.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32  # the default is float16
    settings.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    settings.no_extra_bufts = True  # weights repacked for a processor are rounded otherwise
    settings.ctx_shift = settings.warmup = settings.fit_params = False
    settings.cache_ram_mib = settings.n_ctx_checkpoints = 0
    settings.hostnames = ["127.0.0.1"]
    settings.port = 0
    server = xllamacpp.Server(settings)

    def post(where: str, **body: Any) -> Any:
        data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        with urlopen(Request(server.listening_address + where, data, headers)) as response:
            return json.load(response)

    def tokens_of(text: str, special: bool) -> Any:
        return post("/tokenize", content=text, parse_special=False, add_special=special)["tokens"]

    tokens = [tokens_of(text, special=True) for text in request["texts"]]
    # The server has no probabilities for a token that is a part of a character, so it generates this one. The
    # probabilities are those before sampling.
    letter = tokens_of("a", special=False)[-1]
    options = {"n_probs": request["top"], "post_sampling_probs": False, "samplers": [], "logit_bias": [[letter, 1e6]]}
    options |= {"temperature": 0, "ignore_eos": True, "n_predict": 1}
    places = []
    for prefix in request["places"]:
        [place] = post("/completion", prompt=request["ids"][:prefix], **options)["completion_probabilities"]
        places.append([(top["id"], top["logprob"]) for top in place["top_logprobs"]])
    return {"places": places, "tokens": tokens}


READERS = {"transformers": read_with_transformers, "vllm": read_with_vllm, "llama.cpp": read_with_llama_cpp}

if __name__ == "__main__":
    if sys.argv[1] == "versions":
        print(json.dumps({package.name: package.version for package in distributions()}))
        sys.exit()
    with open(sys.argv[2]) as request, open(sys.argv[3], "w") as answer:
        json.dump(READERS[sys.argv[1]](json.load(request)), answer)
