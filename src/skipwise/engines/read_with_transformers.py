"""Script: next-token log-probabilities by transformers, version 4.45 or newer, in float32 on the CPU.

python read_with_transformers.py REQUEST.json ANSWER.json (see ``request.py``)
"""

import json
import sys
from typing import Any

import torch
import transformers


def read(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request."""
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
        request["model"], trust_remote_code=False, torch_dtype=torch.float32, output_loading_info=True
    )
    model, lost = loaded[0], sorted(loaded[1]["missing_keys"])
    if lost:  # it would draw them at random
        raise ValueError(f"the checkpoint lacks {len(lost)} of its weights: {', '.join(lost[:3])}")
    model.eval()
    ids, places = torch.tensor([request["ids"]]), torch.tensor(request["places"])

    def keep_places(module: torch.nn.Module, hidden: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        return (hidden[0][:, places - 1],)  # the logits of all tokens would not fit in memory

    hook = model.get_output_embeddings().register_forward_pre_hook(keep_places)
    with torch.no_grad():
        logits = model(ids[:, : max(request["places"])], use_cache=False).logits[0]
        hook.remove()
        top = torch.log_softmax(logits.double(), -1).topk(min(request["top"], logits.shape[-1]))
        begin = ids[:, : request["greedy_from"]]
        greedy = model.generate(
            begin,
            attention_mask=torch.ones_like(begin),
            max_new_tokens=request["greedy"],
            min_new_tokens=request["greedy"],
            do_sample=False,
            pad_token_id=0,
        )
    return {
        "version": transformers.__version__,
        "places": [
            list(zip(*place, strict=True)) for place in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        ],
        "greedy": greedy[0, begin.shape[1] :].tolist(),
    }


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    with open(sys.argv[1]) as asked, open(sys.argv[2], "w") as answer:
        json.dump(read(json.load(asked)), answer)
