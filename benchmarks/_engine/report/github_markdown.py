"""Make GitHub's Markdown from untrusted text. Pure."""

import re

from .text import clean, clip


def folded(title: str, text: str) -> str:
    return f"<details><summary>{escaped(title)}</summary>\n\n{text}\n\n</details>\n"


def number(text: str) -> str:
    """In a cell that is not broken."""
    return escaped(text).replace(" ", "&nbsp;")


# What GitHub makes of text: "@" and "#" mention and refer; 7 to 40 hexadecimal digits are a commit
# if there is one, so of however many no 7 are left together; GH-1 and an advisory's number are
# links; two colons make an emoji.
_MENTIONS = r"[@#]"
_LINKS = rf"{_MENTIONS}|[0-9a-fA-F]{{6}}(?=[0-9a-fA-F])|(?i:GH|GHSA|CVE)(?=-)|:(?=[\w+-]+:)"
_BREAK = "\u200b"  # of no width


def escaped(text: str) -> str:
    """Text that Markdown, GitHub's extensions of it and HTML leave alone."""
    return _escaped(text, _LINKS)


def code(text: str, length: int = 100) -> str:
    """Text in a code span, in which GitHub links no commit: commands can be copied from it."""
    return f"<code>{_escaped(clip(clean(text), length), _MENTIONS)}</code>"


def _escaped(text: str, links: str) -> str:
    text = re.sub(links, lambda match: match[0] + _BREAK, clean(text))
    text = re.sub(r"[^\w\s.,:;()/+%'=µ×…→-]|_", lambda match: f"&#{ord(match[0])};", text)
    text = text.replace("://", "&#58;//")
    return re.sub(r"(?i)\bwww\.", lambda match: match[0][:-1] + "&#46;", text)
