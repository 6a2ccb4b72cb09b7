"""Train the embedded nano model and its tokenizer from nothing; writes a folder like ``assets/nano``.

    python tools/pretrain_nano.py OUT --text FOLDER

The text: modules of the standard library, its tests, and the text files of FOLDER (any long prose), each as
often as its length. What ``skipwise.data`` holds out by name is held out here too. Each example is a window of
256 tokens, its start drawn anywhere in all the documents joined by end-of-text; a tenth of them end in a passkey
prompt. An example is a function of (seed, step, place), so a stopped run goes on where it was by the same command.

Muon (torch.optim.Muon) for the matrices and AdamW for embedding and norms: at equal steps a far lower loss than
AdamW alone (see docs/research-log.md). The learning rate warms up, stays, and falls linearly at the end.
"""

import argparse
import json
import os
import sysconfig
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from skipwise.data.prompts import answer_ids, encode, passkey_text
from skipwise.data.text import is_held_out, open_corpus

WINDOW = 256
BATCH = 64
VOCABULARY = 4096
END = "<|endoftext|>"
STABLE_STEPS, DECAY_STEPS = 3900, 2204  # of the embedded model
HELD_OUT = 0.1
PASSKEY = 0.1


def read_sources(prose: Path | None) -> dict[str, list[str]]:
    """Read the texts of each source, less what is held out by name."""
    library = list(open_corpus("stdlib"))
    sources = {
        "library": [d.text for d in library if not is_held_out(d.name, HELD_OUT)],
        "tests": standard_library_tests(),
        "prose": [],
    }
    if prose is not None:
        sources["prose"] = [d.text for d in open_corpus(str(prose)) if not is_held_out(Path(d.name).name, HELD_OUT)]
    return sources


def standard_library_tests() -> list[str]:
    """Read the tests of the standard library, which the ``stdlib`` source leaves out; none where not installed."""
    root = Path(sysconfig.get_paths()["stdlib"])
    texts = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        parts = set(name.split("/"))
        skipped = parts & {"site-packages", "dist-packages", "__pycache__"}
        if skipped or not parts & {"test", "tests", "idle_test"} or is_held_out(name, HELD_OUT):
            continue
        try:
            texts.append(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:  # some test how Python reads other encodings
            continue
    return texts


def train_tokenizer(sources: dict[str, list[str]]) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE with single digits on the library and a third of the prose."""
    backend = Tokenizer(models.BPE())
    pieces = Regex(r"\p{N}| ?[\p{L}]+| ?[^\s\p{L}\p{N}]+|\n[ ]*|\s+")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(pieces, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    sample = sources["library"] + [text[:60_000] for text in sources["prose"]][::3]
    backend.train_from_iterator(
        sample,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=END,
        eos_token=END,
        model_max_length=WINDOW,
        clean_up_tokenization_spaces=False,
    )


class Examples:
    """Windows of 256 tokens, each a function of (seed, step, place)."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, sources: dict[str, list[str]], seed: int) -> None:
        self.tokenizer, self.seed = tokenizer, seed
        streams = {name: self._stream(texts) for name, texts in sources.items()}
        self.tokens = {name: len(stream) for name, stream in streams.items()}
        self.stream = np.concatenate(list(streams.values()))

    def _stream(self, texts: list[str]) -> np.ndarray:
        end = self.tokenizer.eos_token_id
        encoded = self.tokenizer.backend_tokenizer.encode_batch(texts)
        return np.array([i for e in encoded for i in [*e.ids, end]], dtype=np.uint16)

    def batch(self, step: int) -> torch.Tensor:
        """The tokens of one step: int64 [64, 256]."""
        return torch.from_numpy(np.array([self._one(step, i) for i in range(BATCH)], dtype=np.int64))

    def _one(self, step: int, place: int) -> np.ndarray:
        rng = np.random.default_rng([self.seed, step, place])
        start = int(rng.integers(0, len(self.stream) - WINDOW))
        window = self.stream[start : start + WINDOW]
        if rng.random() >= PASSKEY:
            return window
        prompt = self._passkey(rng)
        return np.concatenate([window[: WINDOW - len(prompt)], prompt])

    def _passkey(self, rng: np.random.Generator) -> list[int]:
        """A passkey prompt of any length that fits, with its answer and EOS."""
        key, most = str(int(rng.integers(10_000, 100_000))), WINDOW
        while True:
            sentences = int(rng.integers(0, most, endpoint=True))
            before = int(rng.integers(0, sentences, endpoint=True))
            ids = encode(self.tokenizer, passkey_text(key, before, sentences - before))
            ids += [*answer_ids(self.tokenizer, key), self.tokenizer.eos_token_id]
            if len(ids) <= WINDOW:
                return ids
            most = sentences - 1


def new_model() -> LlamaForCausalLM:
    """Make the architecture: 4 layers, 256 wide, 4 heads of 64; 4.3 M parameters."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=256,
            intermediate_size=704,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=WINDOW,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=0,
            rms_norm_eps=1e-5,
        )
    )


def new_optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices, AdamW for the rest."""
    matrices: list[torch.nn.Parameter] = []
    rest: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (matrices if parameter.ndim == 2 and "embed" not in name else rest).append(parameter)
    return [
        torch.optim.Muon(matrices, lr=0.02, momentum=0.95, weight_decay=0.01, adjust_lr_fn="original"),
        torch.optim.AdamW(rest, lr=0.008, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]


def rate(step: int, stable: int, decay: int) -> float:
    """The share of the full learning rate at a step: 100 steps up, ``stable`` in all, ``decay`` down to 0."""
    return min(1.0, (step + 1) / 100) if step < stable else max(0.0, 1 - (step - stable) / decay)


def pretrain(examples: Examples, out: Path, stable: int, decay: int) -> LlamaForCausalLM:
    """Train, with a state saved every 250 steps that the same command goes on from."""
    torch.manual_seed(examples.seed)
    model = new_model()
    optimizers = new_optimizers(model)
    full = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    state, step = out / "state.pt", 0
    if state.exists():
        saved = torch.load(state, weights_only=True)
        model.load_state_dict(saved["model"])
        for optimizer, values in zip(optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(values)
        step = saved["step"]
    forward = torch.compile(model)
    mask = torch.ones(BATCH, WINDOW, dtype=torch.long)
    positions = torch.arange(WINDOW).expand(BATCH, WINDOW)
    began, first, losses = time.perf_counter(), step, []
    while step < stable + decay:
        for optimizer, lr in zip(optimizers, full, strict=True):
            optimizer.param_groups[0]["lr"] = lr * rate(step, stable, decay)
        ids = examples.batch(step)
        with torch.autocast("cpu", torch.bfloat16):
            loss = forward(input_ids=ids, attention_mask=mask, position_ids=positions, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        losses.append(loss.item())
        if step % 50 == 0:
            speed = (step - first) * BATCH * WINDOW / (time.perf_counter() - began)
            print(f"step {step} loss {np.mean(losses[-50:]):.4f} {speed:,.0f} tokens/s", flush=True)
        if step % 250 == 0:
            save_state(state, model, optimizers, step)
    return model


def save_state(path: Path, model: LlamaForCausalLM, optimizers: list[torch.optim.Optimizer], step: int) -> None:
    """Write the state whole, then rename it."""
    temporary = path.with_suffix(".partial")
    states = [optimizer.state_dict() for optimizer in optimizers]
    torch.save({"model": model.state_dict(), "optimizers": states, "step": step}, temporary)
    os.replace(temporary, path)


def export(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write config, tokenizer and the weights rounded to bfloat16, half the size; tied weights once."""
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    weights = {
        name: value.detach().to(torch.bfloat16).contiguous()
        for name, value in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((out / "config.json").read_text())
    config["dtype"] = "bfloat16"
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--text", type=Path, help="folder of long prose, one document a file")
    parser.add_argument("--tokenizer", type=Path, help="reuse this tokenizer folder instead of training one")
    parser.add_argument("--stable-steps", type=int, default=STABLE_STEPS)
    parser.add_argument("--decay-steps", type=int, default=DECAY_STEPS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    sources = read_sources(options.text)
    if options.tokenizer:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(options.tokenizer)
    else:
        tokenizer = train_tokenizer(sources)
    examples = Examples(tokenizer, sources, options.seed)
    print({name: f"{tokens:,} tokens" for name, tokens in examples.tokens.items()})
    model = pretrain(examples, options.out, options.stable_steps, options.decay_steps)
    export(model, tokenizer, options.out)


if __name__ == "__main__":
    main()
