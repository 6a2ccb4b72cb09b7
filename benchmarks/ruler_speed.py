"""RULER answered by Skipwise and by lm-evaluation-harness's generation: the same prompts, side by side in one process.

    python benchmarks/ruler_speed.py MODEL [--length 2k] [--trials 20] [--data FOLDER] [--precision bf16]

For each task all prompts are answered by one side, then by the other. The scores must be equal, and each answer of ours must
be the beginning of the harness's: Skipwise stops where the score is full. In bf16 the harness's model has its weights in bf16, and
ours multiplies in bf16 as `skipwise evaluate` does; rounding then differs, and so may answers near a tie. The harness gets one
prompt at a time, as with batch_size=1, since prompts of one length differ by some tokens and it pads on the left. Prompts are
made before the clock starts.
"""

import argparse
import time
from pathlib import Path

import torch
from lm_eval.models.huggingface import HFLM

from skipwise.evaluation.plan import plan_prompts
from skipwise.evaluation.retrieval import Question, answers, ask
from skipwise.evaluation.specification import Specification, find_models, read_tasks
from skipwise.method.lengths import parse_length
from skipwise.model.forward import default_device, dtype_of
from skipwise.model.loading import load_model, load_tokenizer


def generated(harness: HFLM, question: Question) -> str:
    """What the harness's greedy generation writes."""
    row = torch.tensor([question.ids], device=harness.device)
    with torch.inference_mode():
        ids = harness._model_generate(
            context=row,
            max_length=row.shape[1] + question.most,
            stop=[harness.tokenizer.eos_token],
            attention_mask=torch.ones_like(row),
            do_sample=False,
        )
    return str(harness.tokenizer.decode(ids[0, row.shape[1] :], skip_special_tokens=True)).strip()


def main() -> None:
    """Measure, and print a Markdown table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--length", default="2k")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32")
    asked = parser.parse_args()
    [found] = find_models([asked.model], base="", length=parse_length(asked.length))
    specification = Specification(
        documents=0,
        tasks=read_tasks(["ruler"], asked.data),
        prompt_lengths=(parse_length(asked.length),),
        num_prompts=asked.trials,
        ruler_data=asked.data,
        precision=asked.precision,
    )
    model, tokenizer = found.load(asked.precision), load_tokenizer(found.name)
    stock = load_model(
        found.name, dtype=dtype_of(asked.precision), device=default_device()
    )  # its frequencies stay float32
    harness = HFLM(pretrained=stock, tokenizer=tokenizer, batch_size=1)
    ours_all = theirs_all = 0.0
    differing = answered = 0
    print(
        f"| task, {asked.trials} prompts of {asked.length} | score | harness | skipwise | times |\n|---|---|---|---|---|"
    )
    for prompts in plan_prompts(specification, found, tokenizer)[0]:
        questions = [ask(tokenizer, request, prompts.data)[0] for request in prompts.requests]
        began = time.perf_counter()
        ours = {answer.number: answer for answer in answers(model, tokenizer, questions, precision=asked.precision)}
        fast = time.perf_counter() - began
        began = time.perf_counter()
        theirs = [generated(harness, question) for question in questions]
        slow = time.perf_counter() - began
        for number, text in enumerate(theirs):
            same = text.startswith(ours[number].text) and questions[number].score(text) == ours[number].score
            differing, answered = differing + (not same), answered + 1
        score = sum(answer.score for answer in ours.values()) / len(ours)
        print(
            f"| {prompts.requests[0].task} | {score:.0%} | {slow:.1f} s | {fast:.1f} s | {slow / fast:.1f} |",
            flush=True,
        )
        ours_all, theirs_all = ours_all + fast, theirs_all + slow
    print(f"| all | | {theirs_all:.1f} s | {ours_all:.1f} s | {theirs_all / ours_all:.1f} |")
    print(f"{differing} of {answered} answers differ.")


if __name__ == "__main__":
    main()
