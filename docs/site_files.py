"""Hooks of the site: copies of the files that pages link, and tables of options."""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()((?:\.\./)+[^)#]+)")
GALLERY = tuple(
    f"results/{run}/page.html" for run in ("table1-smollm2", "table1-nano", "figure1-nano")
)
REPOSITORY_ONLY = re.compile(r"^> .*?in the repository.*?\n\n", re.M | re.S | re.I)


def on_files(files: Files, config: Any) -> Files:
    """Add the gallery and every file that a page links outside of docs/, under its path."""
    names = set(GALLERY)
    for page in files.documentation_pages():
        for link in LINK.findall(page.content_string):
            names.add(outside(link, page) or GALLERY[0])
    for name in sorted(names):
        if (ROOT / name).is_file():  # else the link is dead, and the build says so
            files.append(File.generated(config, copy_of(name), abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Link the copies of outside files, and write tables of options in place of their mark."""

    def copied(link: re.Match[str]) -> str:
        name = outside(link[0], page.file)
        folder = posixpath.dirname(page.file.src_uri)
        return posixpath.relpath(copy_of(name), folder or ".") if name else link[0]

    markdown = LINK.sub(copied, REPOSITORY_ONLY.sub("", markdown))
    if "<!-- options -->" in markdown:
        markdown = markdown.replace("<!-- options -->", "\n".join(option_tables()))
    return markdown


def outside(link: str, page: File) -> str | None:
    """Return the path from the repository's root of a linked file outside of docs/, else None."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.src_uri), link))
    return None if path.startswith("docs/") else path


def copy_of(name: str) -> str:
    """Return the path of the copy, as a text that a browser shows and does not download."""
    return f"{name}.txt" if name.endswith((".md", ".py")) else name


def option_tables() -> Iterator[str]:
    """Yield a heading and a table of options for each command of `sps`."""
    import typer

    from spsbench.cli.main import app

    pending = [("sps", typer.main.get_command(app))]
    while pending:
        name, command = pending.pop(0)
        context = command.make_context(name, [], resilient_parsing=True)
        if hasattr(command, "get_command"):
            parts = command.list_commands(context)
            pending[:0] = [(f"{name} {p}", command.resolve_command(context, [p])[1]) for p in parts]
            continue
        yield f"\n## {name}\n\n{(command.help or '').partition(chr(10))[0]}\n"
        yield "| option | value | default | meaning |\n|---|---|---|---|"
        for option in command.params:
            help_text = getattr(option, "help", None)
            if help_text:
                yield f"| {' | '.join(map(cell_of, option_row(option)))} |"


def option_row(option: Any) -> tuple[str, str, str, str]:
    """Return the flags, the value, the default and the help of an option."""
    flags = ", ".join(f"`{flag}`" for flag in [*option.opts, *option.secondary_opts])
    kind = option.type_descriptor.annotation
    kind = get_args(kind)[0] if get_origin(kind) is list else kind
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    value = option.metavar or " or ".join(choices) or getattr(kind, "__name__", str(kind))
    if option.multiple:
        value += ", repeatable"
    default = option.show_default if isinstance(option.show_default, str) else option.default
    return flags, value, "" if default in (None, False) else str(default), option.help


def cell_of(text: str) -> str:
    """Return a text as the cell of a Markdown table."""
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|").replace("<", "&lt;")
