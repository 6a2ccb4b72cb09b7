"""Made-up questions and documents in the shape of SQuAD 2.0's and HotpotQA's files."""

import json
from pathlib import Path


def article(number: int, paragraphs: int) -> dict[str, object]:
    """Make an article of SQuAD with a question on each paragraph; the second question has no answer."""

    def asked(i: int) -> dict[str, object]:
        answers = [{"text": f"answer {number}-{i}", "answer_start": 0}] * 2
        question = f"What does paragraph {i} of article {number} say?"
        return {"question": question, "answers": answers, "is_impossible": i == 1}

    texts = [f"Article {number}, paragraph {i}: answer {number}-{i}.\nMore {{text}} of it." for i in range(paragraphs)]
    return {"title": str(number), "paragraphs": [{"context": text, "qas": [asked(i)]} for i, text in enumerate(texts)]}


SQUAD = {"version": "v2.0", "data": [article(number, 3 + 2 * number) for number in range(6)]}
HOTPOT = [
    {
        "question": f"Who wrote book {i}?",
        "answer": f"Line {3 * i % 25}",
        "context": [[f"Title {(3 * i + j) % 25}", [f"Line {(3 * i + j) % 25} one.", " Line two."]] for j in range(10)],
    }
    for i in range(12)
]


def write_questions(folder: Path) -> Path:
    """Write both files under the names that RULER gives them."""
    (folder / "squad.json").write_text(json.dumps(SQUAD), encoding="utf-8")
    (folder / "hotpotqa.json").write_text(json.dumps(HOTPOT), encoding="utf-8")
    return folder
