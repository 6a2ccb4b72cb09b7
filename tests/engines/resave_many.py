"""Script: load checkpoints by this environment's transformers and save them again, and tell the tokens of a text.

python resave_many.py JOBS.json TOKENS.json, with a list of [source, destination] in the first, and of tokens in the other
"""

import json
import sys

TEXT = "def f(x):\n    return {'a': [1, 22, 333]}\n\nThe captain's log — naïve café, they'll say.\n"


def main() -> None:
    import transformers

    with open(sys.argv[1]) as file:
        jobs = json.load(file)
    tokens = []
    for source, destination in jobs:
        transformers.AutoModelForCausalLM.from_pretrained(source, torch_dtype="float32").save_pretrained(destination)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        tokenizer.save_pretrained(destination)
        tokens.append(tokenizer(TEXT)["input_ids"])
    with open(sys.argv[2], "w") as file:
        json.dump(tokens, file)


if __name__ == "__main__":
    main()
