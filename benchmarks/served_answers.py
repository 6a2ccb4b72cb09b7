"""Answers of a server beside those of this process: how many are equal, and how close two tokens were where answers part.

    python benchmarks/served_answers.py MODEL URL [--tasks passkey,ruler] [--lengths 1k,2k] [--trials 8] [--precision bf16]

The server gets the prompts of ``skipwise evaluate --server`` and has to tell token ids, as vLLM does. Both sides write greedily
to the end of the answer. Where they part, the local model says in float32 how much likelier its own token was: in a tie, about
as likely, another order of sums or another precision turns the choice round.
"""

import argparse
import sys
from collections import Counter
from itertools import zip_longest

import torch

from skipwise.evaluation.perplexity import inference
from skipwise.evaluation.plan import plan_prompts
from skipwise.evaluation.retrieval import Reader, ask
from skipwise.evaluation.server import connect
from skipwise.evaluation.specification import Specification, find_models, read_tasks
from skipwise.method.lengths import parse_length
from skipwise.model.loading import load_tokenizer


def main() -> None:
    """Ask both, and print a Markdown table and the places where answers part."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("url")
    parser.add_argument("--tasks", default="passkey,keys,lines,ruler")
    parser.add_argument("--lengths", default="1k,2k")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--precision", default="float32")
    asked = parser.parse_args()
    [found] = find_models([asked.model], base="")
    lengths = tuple(parse_length(length) for length in asked.lengths.split(","))
    specification = Specification(
        documents=0, tasks=read_tasks(asked.tasks.split(",")), prompt_lengths=lengths, num_prompts=asked.trials
    )
    server, tokenizer = connect(asked.url), load_tokenizer(found.name)
    server.require_window(max(lengths))
    model = found.load(asked.precision)
    questions, labels = [], []
    for batch in plan_prompts(specification, found, tokenizer)[0]:
        questions += [ask(tokenizer, request, batch.data)[0] for request in batch.requests]
        labels += [f"{request.task} {request.length}" for request in batch.requests]
    bodies = [{"prompt": question.ids, "max_tokens": question.most} for question in questions]
    equal: Counter[str] = Counter()
    for number, _, theirs, _ in server.completions(bodies):
        if theirs is None:
            sys.exit(
                f"{server.engine} returns no token ids; compare its scores by skipwise evaluate --only prompts --server"
            )
        question = questions[number]
        with inference(model, asked.precision):
            reader = Reader(model)

            def finished(ids: list[int], most: int = question.most) -> bool:
                return tokenizer.eos_token_id in ids or len(ids) >= most

            ours = reader.go_on(question.ids, reader.begin(question.ids, theirs[: question.most - 1]), finished)
        parted = next((i for i, (a, b) in enumerate(zip_longest(ours, theirs)) if a != b), None)
        if parted is None:
            equal[labels[number]] += 1
            continue
        if parted in (len(ours), len(theirs)):
            print(f"{labels[number]}, prompt {number}: {len(ours)} tokens here, {len(theirs)} there", flush=True)
            continue
        row = torch.tensor([question.ids + ours[:parted]], device=model.device)
        with inference(model, "float32"):
            logits = model(input_ids=row, attention_mask=torch.ones_like(row), logits_to_keep=1).logits[0, -1]
        apart = float(logits[ours[parted]] - logits[theirs[parted]])
        print(f"{labels[number]}, prompt {number}: answers part at token {parted + 1}, {apart:+.4f} nats", flush=True)
    print(f"\n{server.engine} beside transformers in {asked.precision}\n\n| task, tokens | equal answers |\n|---|---|")
    for label, prompts in Counter(labels).items():
        print(f"| {label} | {equal[label]} of {prompts} |")
    print(f"| all | {equal.total()} of {len(questions)} |")


if __name__ == "__main__":
    main()
