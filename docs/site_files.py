"""Hook of the site: copies the results and sources that docs/ links beside the pages."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = re.compile(r"(\]\()\.\./([^)#]+)")
GALLERY = ("results/table1-nano/page.html", "results/figure1-nano/page.html")


def on_files(files: Files, config: Any) -> Files:
    """Add the gallery and every file that a page links outside of docs/, under its path."""
    pages = [file.content_string for file in files.documentation_pages()]
    linked = {found.group(2) for page in pages for found in OUTSIDE.finditer(page)}
    for name in sorted(linked | set(GALLERY)):
        if (ROOT / name).is_file():  # else the link is dead, and the build says so
            files.append(File.generated(config, copy_of(name), abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Link the copies."""
    return OUTSIDE.sub(lambda found: found.group(1) + copy_of(found.group(2)), markdown)


def copy_of(name: str) -> str:
    """Path of the copy: a text that a browser shows, where it would build or download the file."""
    return f"{name}.txt" if name.endswith((".md", ".py")) else name
