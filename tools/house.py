"""Count the house: lines, files, raises, settings, options, dependencies, tests.

python tools/house.py [CHECKOUT]
"""

import ast
import re
import sys
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(sys.argv[1] if len(sys.argv) > 1 else ".")


def code_lines(path: Path) -> int:
    """Count lines that hold code: no blanks, comments or docstrings."""
    tree, lines = ast.parse(path.read_text(encoding="utf-8")), set[int]()
    for node in ast.walk(tree):
        for child in getattr(node, "body", []) if isinstance(getattr(node, "body", None), list) else []:
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                lines |= set(range(child.lineno, (child.end_lineno or child.lineno) + 1))
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    with path.open("rb") as file:
        found = [t for t in tokenize.tokenize(file.readline) if t.type not in skipped | {tokenize.ENCODING}]
    return len({n for t in found for n in range(t.start[0], t.end[0] + 1)} - lines)


def counts(folder: Path) -> dict[str, float]:
    """Count the package."""
    paths = sorted(folder.rglob("*.py"))
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    names = Counter(
        n.id if isinstance(n, ast.Name) else n.attr for n in nodes if isinstance(n, ast.Name | ast.Attribute)
    )
    private = [n.name for n in nodes if isinstance(n, ast.FunctionDef) and re.match(r"_(?!_)", n.name)]
    imports = sum(
        (n.end_lineno or n.lineno) - n.lineno + 1 for n in nodes if isinstance(n, ast.Import | ast.ImportFrom)
    )
    code = sum(map(code_lines, paths))
    return {
        "lines": sum(path.read_text(encoding="utf-8").count("\n") for path in paths),
        "files": len(paths),
        "code lines": code,
        "raise statements": sum(isinstance(n, ast.Raise) for n in nodes),
        "private functions": len(private),
        "of them called once": sum(names[name] == 1 for name in private),
        "import lines, % of code": round(100 * imports / code, 1),
    }


def interface() -> dict[str, float]:
    """Count settings, commands and options of the installed package."""
    from typer.main import get_command

    from skipwise.cli import app
    from skipwise.recipes.schema import Recipe, Section

    def settings(section: type[Section]) -> int:
        fields = [field.annotation for field in section.model_fields.values()]
        inner = [
            t
            for f in fields
            for t in (f, *getattr(f, "__args__", ()))
            if isinstance(t, type) and issubclass(t, Section)
        ]
        return len(fields) - len(inner) + sum(map(settings, inner))

    commands = [c for c in getattr(get_command(app), "commands").values() if not c.hidden]  # noqa: B009
    options = {(c.name, p.name) for c in commands for p in c.params if p.param_type_name == "option" and not p.hidden}
    return {"settings": settings(Recipe), "commands": len(commands), "options": len(options)}


def readme() -> dict[str, float]:
    """Count the README's lines and words, and its numbers and negations in 100 words of prose."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    prose = re.sub(r"^(```.*?^```|\||!\[).*?$", "", text, flags=re.M | re.S)
    prose = re.sub(r"^(\||!\[).*$|`[^`]*`|\]\([^)]*\)|https?://\S+", "", prose, flags=re.M)
    words = len(prose.split())
    found = {
        "numbers": r"\b\d[\d.,]*",
        "caveats": r"\b(not|no|never|without|only|but|may|fails?|refused?|unless|none|cannot)\b",
        "hard negations": r"\b(not|no|none|never|without|cannot)\b",
    }
    shares = {
        f"README: {name}, % of words": round(100 * len(re.findall(rule, prose, re.I)) / words, 1)
        for name, rule in found.items()
    }
    return {"README: lines": text.count("\n"), "README: words": len(text.split()), **shares}


def main() -> None:
    """Print the table."""
    rows = counts(ROOT / "src" / "skipwise")
    if len(sys.argv) == 1:
        rows |= interface()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tests = sorted((ROOT / "tests").rglob("*.py"))
    rows |= {
        "required dependencies": len(project["dependencies"]),
        "test lines": sum(path.read_text(encoding="utf-8").count("\n") for path in tests),
        "test code lines / code lines": round(sum(map(code_lines, tests)) / rows["code lines"], 2),
        "words of docs": sum(len(path.read_text(encoding="utf-8").split()) for path in (ROOT / "docs").rglob("*.md")),
    }
    rows |= readme()
    for name, value in rows.items():
        print(f"{name:30} {value:>9,}")


if __name__ == "__main__":
    main()
