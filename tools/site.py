"""A hook of mkdocs: pages of the repository's root join those of docs/, and links between them lead inside the site.

On the site a link to another file of the repository, such as an example, is its text alone.
"""

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
OF_ROOT = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "SECURITY.md": "SECURITY.md",
}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    for name, page in OF_ROOT.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    of_root = {page: name for name, page in OF_ROOT.items()}
    source = page.file.src_uri
    folder = ROOT if source in of_root else (ROOT / "docs" / source).parent
    here = os.path.dirname(source)

    def inside(link: re.Match[str]) -> str:
        image, text, target, anchor = link.group(1), link.group(2), link.group(3), link.group(4) or ""
        if not target or "://" in target or target.startswith("mailto:"):
            return link.group()
        path = Path(os.path.normpath(folder / target)).relative_to(ROOT).as_posix()
        if path not in OF_ROOT and not path.startswith("docs/"):
            return text if (ROOT / path).exists() else link.group()
        uri = OF_ROOT.get(path, path.removeprefix("docs/"))
        return f"{image}[{text}]({os.path.relpath(uri, here or '.')}{anchor})"

    return _LINK.sub(inside, markdown)
