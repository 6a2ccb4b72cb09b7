"""Find words that CONTRIBUTING.md bans: speech verbs for data, pronouns for nouns, private phrases.

python tools/words.py  # docstrings, comments, messages and help of src; docs; README
"""

import ast
import io
import re
import sys
import tokenize
from pathlib import Path

BANNED = re.compile(
    r"\b((?<!they'll )sa(?:ys?|id)|tells?|told|whose|beside|behind|stands?|stood|as it is|of its own|what came out|earlier (?:weights|versions?|method|runs?)|way out"
    r"|is no name|believes?|laid out|anew|a want of|all the same|at the most|so many|such a one)\b",
    re.I,
)


def texts(path: Path) -> list[tuple[int, str]]:
    """Return the prose of a file by line: strings and comments of Python, all lines of a page but code blocks."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        plain = re.sub(r"^(```|~~~).*?^\1|`[^`\n]*`", lambda m: "\n" * m[0].count("\n"), source, flags=re.M | re.S)
        return list(enumerate(plain.splitlines(), 1))
    comments = [t for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type == tokenize.COMMENT]
    strings = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    found = [(t.start[0], t.string) for t in comments]
    return found + [(n.lineno + i, line) for n in strings for i, line in enumerate(str(n.value).splitlines())]


def main() -> None:
    """Print each banned word with its place; end with 1 if there is one."""
    paths = [*Path("src").rglob("*.py"), *Path("docs").rglob("*.md"), Path("README.md")]
    hits = [(p, n, m[0]) for p in sorted(paths) for n, line in texts(p) for m in BANNED.finditer(line)]
    for path, number, word in hits:
        print(f"{path}:{number}: {word}")
    sys.exit(bool(hits))


if __name__ == "__main__":
    main()
