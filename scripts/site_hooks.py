"""Hooks of the documentation site (mkdocs.yml).

- README, CONTRIBUTING and CHANGELOG are pages of the site, so that nothing is written twice.
- A link that leaves docs/ goes to a page that shows that file. So every link works wherever the site is put.
- Formulas become MathML, which browsers draw themselves.
- In tables, a number and its interval stay on one line.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
BORROWED = {"index.md": "README.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
PAGES = {path: page for page, path in BORROWED.items()}
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)
INTERVAL = re.compile(r"(?<=\d) (\[[^\]|]*\])(?!\()")
MATH = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$", re.DOTALL)
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".cff": "yaml"}


def on_files(files: Files, config: Any) -> Files:
    """Add the borrowed pages, and a page for every file outside docs/ to which a page links."""
    for page, path in BORROWED.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text(encoding="utf-8")))
    wanted: set[str] = set()
    for file in list(files.documentation_pages()):
        for target in targets(file.content_string, home(file.src_uri)):
            if is_outside(target) and (ROOT / target).exists():
                wanted.add(target)
    for target in sorted(wanted):
        files.append(File.generated(config, source_page(target), content=shown(target)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links and formulas, outside of code."""
    uri = page.file.src_uri
    if uri.startswith("source/"):
        return markdown
    parts = CODE.split(markdown.replace("<details>", '<details markdown="1">'))
    parts[::2] = [MATH.sub(formula, relinked(part, uri)) for part in parts[::2]]
    # A link whose text is code was cut apart above: [`name`](target).
    return unbroken(relinked("".join(parts), uri))


def unbroken(markdown: str) -> str:
    """The text with spaces in `88.8 [85.7, 91.3]` that do not break, in tables."""
    return "".join(
        INTERVAL.sub(lambda found: found[0].replace(" ", "\u00a0"), line) if line.startswith("|") else line
        for line in markdown.splitlines(keepends=True)
    )


def home(uri: str) -> str:
    """The path in the repository of a page of the site."""
    return BORROWED.get(uri, f"docs/{uri}")


def targets(markdown: str, path: str) -> list[str]:
    """The files of the repository to which a text in the file `path` links."""
    found = [match[2].partition("#")[0] for match in LINK.finditer(markdown)]
    return [resolved(each, path) for each in found if each and "://" not in each]


def resolved(link: str, path: str) -> str:
    """The path in the repository that a link in the file `path` means."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def is_outside(target: str) -> bool:
    """Whether a file of the repository is none of the site's own."""
    return not target.startswith("docs/") and target not in PAGES


def source_page(target: str) -> str:
    """The page that shows a file or folder."""
    return f"source/{target}.md"


def relinked(text: str, uri: str) -> str:
    """The text with links that lead to pages of the site. Links that are rewritten already stay."""

    def rewrite(match: re.Match[str]) -> str:
        link, hash_, anchor = match[2].partition("#")
        if not link or "://" in link or link.startswith("/"):
            return match[0]
        target = resolved(link, home(uri))
        if not (ROOT / target).exists():
            return match[0]
        page = PAGES.get(target) or (source_page(target) if is_outside(target) else target.removeprefix("docs/"))
        return f"{match[1]}{posixpath.relpath(page, posixpath.dirname(uri) or '.')}{hash_}{anchor}{match[3]}"

    return LINK.sub(rewrite, text)


def formula(match: re.Match[str]) -> str:
    """LaTeX as MathML, on a line of its own for $$."""
    text = (match[1] or match[2]).strip().replace(r"\setminus", r"\backslash")  # which every font has
    if match[1]:
        return f'<span class="formula">{convert(text, display="block")}</span>'
    return str(convert(text))


def shown(target: str) -> str:
    """A page with the text of a file, or the names in a folder."""
    path = ROOT / target
    if path.is_dir():
        names = sorted(each.name for each in path.iterdir() if not each.name.startswith(("__", ".")))
        return f"# {target}\n\n" + "\n".join(f"- `{name}`" for name in names) + "\n"
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    if path.suffix == ".ipynb":
        return f"# {target}\n\nA notebook: open it from a clone, in Jupyter.\n"
    return f"# {target}\n\n`````{LANGUAGES.get(path.suffix, 'text')}\n{text}`````\n"
