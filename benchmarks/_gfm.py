"""Pieces of GitHub's Markdown, made of text that anyone may have given. Pure."""

import re

from . import _wording as words


def folded(title: str, text: str) -> str:
    return f"<details><summary>{escaped(title)}</summary>\n\n{text}\n\n</details>\n"


def number(text: str) -> str:
    """In a cell that is not broken."""
    return escaped(text).replace(" ", "&nbsp;")


def escaped(text: str) -> str:
    """Text that Markdown, GitHub's extensions of it and HTML leave alone."""
    text = re.sub(
        r"[^\w\s.,:;()/+%'=µ×…→-]|_", lambda match: f"&#{ord(match[0])};", words.clean(text)
    )
    text = re.sub(r"(&#(?:64|35);)", r"\1&#8203;", text)  # mentions and references
    text = text.replace("://", "&#58;//")
    return re.sub(r"(?i)\bwww\.", lambda match: match[0][:-1] + "&#46;", text)


def code(text: str, length: int = 100) -> str:
    """Text in a code span, in which GitHub neither mentions nor links."""
    return f"<code>{escaped(words.clip(words.clean(text), length))}</code>"


def small(text: str) -> str:
    return f"<sub>{escaped(text)}</sub>"
