"""How much faster Skipwise's evaluation is than the straightforward way, side by side in one process, at equal results.

    python benchmarks/evaluation_speed.py [MODEL] [--precision bf16]
    python benchmarks/evaluation_speed.py MODEL --generate 16k,32k

Sliding windows against whole-window logits, a window at a time, labels masked; the truncated curve of 16 lengths against 16
passes; passkeys against generating without a cache; and the peak memory of one document of 64k tokens, in a process of its
own. Each pair is timed in turn, three rounds, and the median of each side is taken; the results must agree.

With ``--generate`` only passkeys of these lengths, one each and once, against ``generate()`` on the stock model as
``from_pretrained`` loads it, in the dtype of its files.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from skipwise.data.prompts import answer_ids, passkey_prompt
from skipwise.evaluation.perplexity import sliding_perplexity, sliding_scores
from skipwise.evaluation.retrieval import answers, is_hit, question_of
from skipwise.method.lengths import parse_length
from skipwise.model.config import resolve
from skipwise.model.forward import autocast, choose_precision
from skipwise.model.loading import load_model, load_tokenizer

ROUNDS = 3
Result = TypeVar("Result")


def both(theirs: Callable[[], Result], ours: Callable[[], Result]) -> tuple[float, float, Result, Result]:
    """Median seconds and the result of each side, timed in turn."""
    times: tuple[list[float], list[float]] = ([], [])
    results: dict[int, Result] = {}
    for _ in range(ROUNDS):
        for side, run in enumerate((theirs, ours)):
            began = time.perf_counter()
            results[side] = run()
            times[side].append(time.perf_counter() - began)
    return statistics.median(times[0]), statistics.median(times[1]), results[0], results[1]


def close(theirs: object, ours: object, tolerance: float) -> None:
    """Stop where the two sides do not agree."""
    if not np.allclose(np.asarray(theirs), np.asarray(ours), rtol=tolerance, atol=0):
        sys.exit(f"the results differ: {theirs} and {ours}")


def show(what: str, theirs: float, ours: float) -> None:
    """Print one line of the table."""
    print(f"| {what} | {theirs:.2f} s | {ours:.2f} s | {theirs / ours:.1f} |", flush=True)


class Straightforward:
    """The scripts that evaluations are usually copied from."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, precision: str) -> None:
        self.model, self.tokenizer, self.precision = model, tokenizer, precision

    def forward(self, **inputs: Any) -> Any:
        """One pass, without gradients, in the same precision as ours."""
        with torch.inference_mode(), autocast(self.model.device, self.precision):
            return self.model(**inputs)

    def sliding(self, document: np.ndarray, window: int, stride: int) -> float:
        """Mean loss: a window at a time, the loss of its new tokens by masked labels."""
        nll, scored, behind = 0.0, 0, 0
        ids = torch.from_numpy(document)[None]
        for begin in range(0, len(document), stride):
            end = min(begin + window, len(document))
            rows = ids[:, begin:end]
            labels = rows.clone()
            labels[:, : behind - begin] = -100
            tokens = int((labels[:, 1:] != -100).sum())
            nll += self.forward(input_ids=rows, labels=labels, use_cache=False).loss.item() * tokens
            scored, behind = scored + tokens, end
            if end == len(document):
                return nll / scored
        raise AssertionError

    def generated(self, prompt: list[int], tokens: int) -> str:
        """Greedy, the whole text read again for every token."""
        ids = torch.tensor([prompt])
        end = self.tokenizer.eos_token_id
        for _ in range(tokens):
            logits = self.forward(input_ids=ids, use_cache=False).logits[:, -1]
            if int(logits.argmax()) == end:
                break
            ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
        return str(self.tokenizer.decode(ids[0, len(prompt) :])).strip()


def against_generate(name: str, lengths: list[int], precision: str) -> None:
    """One passkey of each length, by ``generate()`` and by Skipwise; the answers must be the same."""
    tokenizer = load_tokenizer(name)
    print("| what | generate() | skipwise | times |\n|---|---|---|---|")
    for length in lengths:
        prompt = passkey_prompt(tokenizer, length, np.random.default_rng([0, length, 0]))
        stock = AutoModelForCausalLM.from_pretrained(resolve(name)).eval()
        began = time.perf_counter()
        more = {"max_new_tokens": len(answer_ids(tokenizer, prompt.answer)) + 1, "do_sample": False}
        ids = stock.generate(torch.tensor([prompt.ids]), attention_mask=torch.ones(1, len(prompt.ids)), **more)
        slow, dtype = time.perf_counter() - began, stock.dtype
        theirs = str(tokenizer.decode(ids[0, len(prompt.ids) :], skip_special_tokens=True)).strip()
        del stock
        model = load_model(name).eval()
        began = time.perf_counter()
        [ours] = answers(model, tokenizer, [question_of(prompt, tokenizer)], precision=precision)
        fast = time.perf_counter() - began
        if theirs != ours.text:
            sys.exit(f"the answers differ: {theirs!r} and {ours.text!r}")
        show(
            f"a passkey of {length:,} tokens ({'found' if ours.hit else 'not found'}; {dtype} against {precision})",
            slow,
            fast,
        )


def main() -> None:
    """Measure, and print a Markdown table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="nano")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--generate", help="lengths of passkeys, as 16k,32k")
    parser.add_argument("--peak", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    precision = choose_precision(chosen.precision)
    exact = precision == "float32"
    if chosen.generate:
        against_generate(chosen.model, [parse_length(length) for length in chosen.generate.split(",")], precision)
        return
    model = load_model(chosen.model).eval()
    if chosen.peak:
        document = np.random.default_rng(0).integers(0, 4096, 65536)
        list(sliding_scores(model, [document], window=65536, stride=65536, precision=precision))
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        print(int(status["VmHWM"].split()[0]) / 2**20)  # KiB; getrusage would count what the parent process held
        return
    tokenizer = load_tokenizer(chosen.model)
    script = Straightforward(model, tokenizer, precision)
    draw = np.random.default_rng(0)
    print(f"{chosen.model}, {precision}, {torch.get_num_threads()} threads, {ROUNDS} rounds\n")
    print("| what | straightforward | skipwise | times |\n|---|---|---|---|")
    for window in (1024, 2048, 4096, 8192):
        document = draw.integers(0, model.config.vocab_size, window + 12 * 128)

        def ours(document: np.ndarray = document, window: int = window) -> float:
            score = sliding_perplexity(model, [document], window=window, stride=128, precision=precision)
            return score.nll / score.tokens

        def theirs(document: np.ndarray = document, window: int = window) -> float:
            return script.sliding(document, window, 128)

        slow, fast, a, b = both(theirs, ours)
        close(a, b, 1e-5 if exact else 1e-4)
        show(f"sliding windows of {window:,}, stride 128", slow, fast)
    document = draw.integers(0, model.config.vocab_size, 16 * 1024)
    lengths = [1024 * n for n in range(1, 17)]

    def curve() -> list[float]:
        [scores] = sliding_scores(model, [document], window=len(document), stride=len(document), precision=precision)
        sums, _ = scores.buckets([1, *lengths])
        return list(np.cumsum(sums) / (np.array(lengths) - 1))

    def passes() -> list[float]:
        return [script.sliding(document[:n], n, n) for n in lengths]

    slow, fast, one_by_one, at_once = both(passes, curve)
    close(one_by_one, at_once, 1e-5 if exact else 1e-4)
    show("perplexity of the first 1k, 2k, ... 16k tokens", slow, fast)
    prompts = [passkey_prompt(tokenizer, 4096, np.random.default_rng([0, 4096, i])) for i in range(chosen.trials)]

    def asked() -> list[str]:
        questions = [question_of(prompt, tokenizer) for prompt in prompts]
        ours = sorted(answers(model, tokenizer, questions, precision=precision), key=lambda a: a.number)
        return [a.text for a in ours]

    def generated() -> list[str]:
        most = [len(answer_ids(tokenizer, p.answer)) + 1 for p in prompts]
        return [script.generated(p.ids, n) for p, n in zip(prompts, most, strict=True)]

    slow, fast, written, answered = both(generated, asked)
    apart = sum(x != y for x, y in zip(written, answered, strict=True))
    if exact and apart:
        sys.exit(f"{apart} answers differ")
    found = sum(is_hit(text, prompt.answer) for text, prompt in zip(answered, prompts, strict=True))
    show(f"{chosen.trials} passkeys at 4,096 tokens ({found} found, {apart} answers differ)", slow, fast)
    command = [sys.executable, __file__, chosen.model, "--precision", chosen.precision, "--peak"]
    peak = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])
    print(f"\npeak memory of a process that reads one document of 65,536 tokens: {peak:.2f} GiB")


if __name__ == "__main__":
    main()
